"""Tables on servers."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal

from sparsefleet import _core
from sparsefleet.errors import ConfigError
from sparsefleet.field_checks import require_positive
from sparsefleet.job_key import find_job_key
from sparsefleet.store.store import Store

_log = logging.getLogger("sparsefleet.client")
_LEVELS = (logging.INFO, logging.WARNING, logging.ERROR)


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoteStoreConfig:
    """How long a RemoteStore waits for what. All in seconds but the last."""

    timeout_s: float = 30.0
    """A call, with all its tries, unless the call says otherwise."""

    connect_timeout_s: float = 30.0
    """Making the store: servers may still be starting."""

    try_timeout_s: float = 10.0
    """One try of a call, before it is made again on a new connection."""

    heartbeat_interval_s: float = 2.0
    """Time between signs of life to each server."""

    peer_timeout_s: float = 10.0
    """A server silent for this long counts as lost, and calls to it fail naming it."""

    max_frame_bytes: int = 256 << 20
    """Largest request or reply. The servers have a limit of their own."""

    def __post_init__(self) -> None:
        for field in fields(self):
            require_positive(self, field.name)
        if self.heartbeat_interval_s >= self.peer_timeout_s:
            raise ConfigError(
                "RemoteStoreConfig.heartbeat_interval_s must be below peer_timeout_s "
                f"({self.peer_timeout_s}), got {self.heartbeat_interval_s}"
            )


class RemoteStore(Store):
    """A store whose tables live on the servers at ``endpoints`` (``"host:port"``, in order).

    Every connection proves the job key (``job_key``, or see docs/env.md for where it comes
    from). Over the network it is encrypted; to a server of this host and user it goes through
    memory that only the two processes share. ``transport="tls"`` encrypts that too, ``"plain"``
    nothing: asked for here or by ``SPARSEFLEET_TRANSPORT``, which the launcher sets. ``name`` is
    what servers call this client in their messages.
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
                f"endpoints must be a list of 'host:port', got the text {endpoints!r}: "
                "put it in a list"
            )
        if not endpoints:
            raise ConfigError(
                "endpoints is empty: a RemoteStore needs at least one server "
                "(a script that takes them from its role is started by `sparsefleet launch`)"
            )
        if job_key is not None and not isinstance(job_key, bytes):
            raise ConfigError(f"job_key must be bytes, got {type(job_key).__name__}")
        config = config or RemoteStoreConfig()
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
        )
        super().__init__(native, timeout_s=config.timeout_s)


def _write_log(severity: int, message: str) -> None:
    _log.log(_LEVELS[severity], message)
