"""Tables on servers."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal

from sparsefleet import _core
from sparsefleet.errors import ConfigError
from sparsefleet.field_checks import require_positive
from sparsefleet.job_key import find_job_key
from sparsefleet.store.own_loop import declare_own_loop
from sparsefleet.store.rows import DataMark
from sparsefleet.store.store import Store

_log = logging.getLogger("sparsefleet.client")
_LEVELS = (logging.INFO, logging.WARNING, logging.ERROR)

WireDtype = Literal["float32", "bf16"]
WIRE_DTYPES: tuple[WireDtype, ...] = ("float32", "bf16")


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoteStoreConfig:
    """Timeouts and limits for a RemoteStore."""

    timeout_s: float = 30.0
    """Time limit for a call, including retries, unless the call has its own limit. Time spent
    waiting for a server, as allowed by `failover_wait_s`, is not included.
    """

    connect_timeout_s: float = 30.0
    """Time limit for connecting to servers that may still be starting; at least `failover_wait_s`.
    """

    try_timeout_s: float = 10.0
    """Time limit for one attempt before the call is retried on a new connection."""

    heartbeat_interval_s: float = 2.0
    """Time between heartbeats to each server."""

    peer_timeout_s: float = 10.0
    """A server that is silent for this long is lost: calls fail with an error that names it."""

    failover_wait_s: float = 0.0
    """Seconds that a durable server may take to restart, or to get space on a full disk. Until
    then, calls to that server are retried, and their own time limits do not run. If 0, an
    unreachable server is lost after `peer_timeout_s`, and a full disk is an immediate error. The
    environment variable `SPARSEFLEET_FAILOVER_WAIT_S` can raise this setting."""

    session: str = ""
    """Servers treat successive clients with the same session name as one client: a restarted
    worker continues its request numbers, and `applied_data` returns which of its data was applied.
    If empty, the session is new."""

    max_frame_bytes: int = 256 << 20
    """Largest request or reply. Servers have their own limit."""

    wire_dtype: WireDtype | None = None
    """Number format of pulls and pushes on the network. "bf16" moves the upper 16 bits of each
    float32: gradients and added values are rounded stochastically, which keeps their mean; rows and
    dense values are rounded to the nearest. Servers, their checkpoints, this process and shared
    memory within a host still use float32. None uses `SPARSEFLEET_WIRE_DTYPE` if set, else
    "float32"."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.name not in ("failover_wait_s", "session", "wire_dtype"):
                require_positive(self, field.name)
        if not 0 <= self.failover_wait_s <= 1e6:
            raise ConfigError(
                f"RemoteStoreConfig.failover_wait_s must be in 0..1e6, got {self.failover_wait_s}"
            )
        if self.wire_dtype is not None and self.wire_dtype not in WIRE_DTYPES:
            raise ConfigError(
                f"RemoteStoreConfig.wire_dtype must be 'float32' or 'bf16', got {self.wire_dtype!r}"
            )
        if self.heartbeat_interval_s >= self.peer_timeout_s:
            raise ConfigError(
                "RemoteStoreConfig.heartbeat_interval_s must be below peer_timeout_s "
                f"({self.peer_timeout_s}), got {self.heartbeat_interval_s}"
            )


class RemoteStore(Store):
    """A store whose tables live on the servers at ``endpoints`` (``"host:port"``, in order).

    Every connection is authenticated with the job key (``job_key``; docs/env.md lists the
    defaults). Network traffic is encrypted; a server of the same user on this host is reached
    through private shared memory. ``transport="tls"`` always uses TLS, ``"plain"`` encrypts
    nothing; the default is ``SPARSEFLEET_TRANSPORT``, which the launcher sets. ``name`` identifies
    this client in the servers' messages.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        name: str = "client",
        transport: Literal["auto", "tls", "plain"] | None = None,
        job_key: bytes | None = None,
        config: RemoteStoreConfig | None = None,
    ) -> None:
        if isinstance(endpoints, str):
            raise ConfigError(
                f"endpoints must be a list of 'host:port' strings, got the string {endpoints!r}: "
                "put it in a list"
            )
        if not endpoints:
            raise ConfigError(
                "endpoints is empty: a RemoteStore needs at least one server "
                "(to get endpoints from the role, start the script with `sparsefleet launch`)"
            )
        if job_key is not None and not isinstance(job_key, bytes):
            raise ConfigError(f"job_key must be bytes, got {type(job_key).__name__}")
        config = config or RemoteStoreConfig()
        wait_s = max(config.failover_wait_s, failover_wait_s())
        native = _core.Store.connect(
            list(endpoints),
            job_key=find_job_key(endpoints) if job_key is None else job_key,
            transport=transport or os.environ.get("SPARSEFLEET_TRANSPORT", "auto"),
            name=name,
            connect_timeout_s=config.connect_timeout_s,
            try_timeout_s=config.try_timeout_s,
            heartbeat_interval_s=config.heartbeat_interval_s,
            peer_timeout_s=config.peer_timeout_s,
            max_frame_bytes=config.max_frame_bytes,
            log=_write_log,
            failover_wait_s=wait_s,
            session=config.session,
            restart_notes=os.environ.get("SPARSEFLEET_LOG_DIR", ""),
            wire_dtype=config.wire_dtype or _wire_dtype(),
        )
        super().__init__(native, timeout_s=config.timeout_s)
        self.max_frame_bytes = config.max_frame_bytes
        self._loop_of = name if not config.session and _is_worker(name) else ""

    def applied_data(self, *, timeout_s: float | None = None) -> list[list[DataMark]]:
        """Return, for each server, which data was applied by pushes of this session.

        The data is ordered by stream; only the latest epoch of each stream is included. A push
        whose ``data`` has already been applied is not applied again.
        """
        return self._native.applied_data(self._deadline(timeout_s))

    def adopt_data(
        self, by_server: Sequence[Sequence[DataMark]], *, timeout_s: float | None = None
    ) -> None:
        """Treat data that servers applied in other sessions as applied in this session.

        A push of the same data is then applied only on servers that lack it. `applied_data()` must
        not contain any of this data yet.
        """
        native = [list(marks) for marks in by_server]
        self._native.adopt_data(native, self._deadline(timeout_s))

    def keep_session(self, keeps: bool = True) -> None:
        """Set whether the session outlives this store, just as it outlives a killed process.

        Only a named session can outlive its store; it also survives an error that stops the
        process.
        """
        self._native.keep_session(keeps)

    def _begin_loop(self) -> None:
        if (
            self._loop_of
        ):  # declared only now, since a process that has not trained can be restarted
            declare_own_loop(self, self._loop_of)
            self._loop_of = ""


def _is_worker(name: str) -> bool:
    """Return whether this store name belongs to a training worker, whichever scheduler started
    it.
    """
    index = os.environ.get("SPARSEFLEET_INDEX", "[0-9]+")
    return re.search(rf"\bworker-{index}$", name) is not None


def failover_wait_s() -> float:
    """Return SPARSEFLEET_FAILOVER_WAIT_S, or 0 if it is not set."""
    text = os.environ.get("SPARSEFLEET_FAILOVER_WAIT_S", "0")
    try:
        return float(text)
    except ValueError:
        raise ConfigError(
            f"SPARSEFLEET_FAILOVER_WAIT_S must be a number of seconds, got {text!r}"
        ) from None


def _wire_dtype() -> str:
    text = os.environ.get("SPARSEFLEET_WIRE_DTYPE") or "float32"
    if text not in WIRE_DTYPES:
        raise ConfigError(f"SPARSEFLEET_WIRE_DTYPE must be 'float32' or 'bf16', got {text!r}")
    return text


def _write_log(severity: int, message: str) -> None:
    _log.log(_LEVELS[severity], message)
