"""The connections of a rank: the store shared by all ranks, heartbeats, and process groups.

Traffic between ranks is unprotected by default, since torch.distributed has no job key; users are
warned. gloo can use TLS with certificates, if torch was built with TLS support; the settings are
environment variables that torch reads itself.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import logging
import os
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from sparsefleet.collective.rendezvous import (
    AnsweringStore,
    MeetingStore,
    loopback_sockets,
    missing_keys,
    second_connection,
)
from sparsefleet.errors import ConfigError, DeadlineError, RpcError

__all__ = [
    "Absence",
    "Connections",
    "Heartbeat",
    "check_gloo_transport",
    "name_ranks",
    "warn_of_exposed_traffic",
]


_BEAT_S = 0.5
_STOP_S = 2.0
_LEAVE_S = 6.0
_LOOK_S = 1.0
_TRANSPORT = "GLOO_DEVICE_TRANSPORT"
_TLS = "TCP_TLS"
_INTERFACES = {"gloo": "GLOO_SOCKET_IFNAME", "nccl": "NCCL_SOCKET_IFNAME"}
_log = logging.getLogger("sparsefleet.collective")
_warned: set[str] = set()


class Heartbeat:
    """Sends this rank's heartbeats from a background thread, and checks those of other ranks.

    `store` must not be shared, since calls to one store wait for each other. Thread-safe.
    """

    def __init__(self, store: AnsweringStore, rank: int) -> None:
        self._store = store
        self._rank = rank
        self._is_store_gone = False
        self._stopping = threading.Event()
        self._store.set(f"beat/{rank}", "0")
        self._thread = threading.Thread(target=self._run, daemon=True, name="collective-heartbeat")
        self._thread.start()

    @property
    def is_store_gone(self) -> bool:
        """Whether the process that holds the store has stopped responding."""
        return self._is_store_gone

    def silent_ranks(self, ranks: Iterable[int], silence_s: float) -> list[int]:
        """Return the ranks that have sent no heartbeat for `silence_s`.

        Waits that long if a heartbeat has stopped. The result is empty if the store is gone, since
        no rank's state is known then.
        """
        deadline = time.monotonic() + silence_s
        silent = {rank: self._count(rank) for rank in ranks}
        while silent and not self._is_store_gone and time.monotonic() < deadline:
            time.sleep(_BEAT_S / 2)
            silent = {rank: count for rank, count in silent.items() if self._count(rank) == count}
        return [] if self._is_store_gone else sorted(silent)

    def stop(self) -> None:
        """Stop the heartbeat."""
        self._stopping.set()
        self._thread.join(_STOP_S)
        self._store.close()

    def _run(self) -> None:
        count = 0
        while not self._is_store_gone and not self._stopping.wait(_BEAT_S):
            count += 1
            try:
                self._store.set(f"beat/{self._rank}", str(count))
                self._store.check([f"beat/{self._rank}"])  # set() alone gets no reply
            except RuntimeError:
                self._is_store_gone = True

    def _count(self, rank: int) -> int:
        """Return the heartbeat count, or -1 for a rank that never started."""
        key = f"beat/{rank}"
        if self._is_store_gone:
            return -1
        try:
            return int(self._store.get(key)) if self._store.check([key]) else -1
        except RuntimeError:
            self._is_store_gone = True
            return -1


@dataclass(frozen=True, slots=True)
class Absence:
    """The ranks that no longer take part, because they are lost or have left."""

    lost: tuple[int, ...] = ()
    """Ranks whose heartbeat stopped without notice."""
    left: dict[int, str] = field(default_factory=dict)
    """The reason that each rank gave when it left."""

    def __bool__(self) -> bool:
        return bool(self.lost or self.left)

    def __str__(self) -> str:
        summary = [f"rank {rank} {words}" for rank, words in self.left.items()]
        return "; ".join([*(f"rank {rank} is lost" for rank in self.lost), *summary])


class Connections:
    """A rank's connections to the other ranks. All ranks must construct it at the same time."""

    def __init__(self, rank: int, size: int, meeting: MeetingStore, *, timeout_s: float) -> None:
        self.store = AnsweringStore(meeting.store)
        """The store of this world."""
        self._rank = rank
        self._others = [other for other in range(size) if other != rank]
        self._meeting = meeting
        self._timeout = timedelta(seconds=timeout_s)
        self._groups: list[dist.ProcessGroup] = []
        self._lost: set[int] = set()
        self._owns_default = False
        self._heartbeat = Heartbeat(
            AnsweringStore(second_connection(meeting.store), answer_s=5.0), rank
        )
        atexit.register(self._leave_at_exit)

    def arrive(self, facts: str, timeout_s: float | None = None) -> bool:
        """Wait for all ranks.

        Return False if a rank was replaced in the meantime; all ranks must then meet again. Raises
        DeadlineError, which names the ranks that do not arrive, and ConfigError if the ranks' facts
        about the job differ. timeout_s: overrides the general limit for waits.
        """
        self.store.set(f"here/{self._rank}", facts)
        timeout_s = self._timeout.total_seconds() if timeout_s is None else timeout_s
        deadline = time.monotonic() + timeout_s
        while missing := self.wait_for("here", min(_LOOK_S, deadline - time.monotonic())):
            if self._meeting.is_outdated():
                return False
            if time.monotonic() < deadline:
                continue
            self._lost.update(missing)
            raise DeadlineError(
                f"{name_ranks(missing)} did not reach the rendezvous at {self._meeting.where} "
                f"within {timeout_s:g} s: check that all ranks were started and are still running"
            )
        for other in self._others:
            theirs = self.store.get(f"here/{other}").decode()
            if theirs != facts:
                raise ConfigError(
                    f"rank {other} was started for {theirs}, but rank {self._rank} for {facts}; "
                    "start all ranks of a job with the same settings"
                )
        return True

    def wait_for(self, what: str, timeout_s: float) -> list[int]:
        """Wait for all others to set their key `what/<rank>`; return the ranks that did not.

        Does not wait for ranks known to be lost.
        """
        keys = {f"{what}/{rank}": rank for rank in self._others if rank not in self._lost}
        return [keys[key] for key in missing_keys(self.store, keys, timeout_s)]

    def make_default_group(self, backend: str) -> dist.ProcessGroup:
        """Return the group of all ranks, or the script's own group if it has created one."""
        if not dist.is_initialized():
            with loopback_sockets(self._meeting.is_loopback):
                dist.init_process_group(
                    backend,
                    store=PrefixStore("group", self.store.plain),
                    rank=self._rank,
                    world_size=len(self._others) + 1,
                    timeout=self._timeout,
                )
            self._owns_default = True
        group = dist.group.WORLD
        assert group is not None
        self._groups.append(group)
        return group

    def new_group(self, ranks: Sequence[int]) -> dist.ProcessGroup | None:
        """Create a group; return None on ranks outside the group. All ranks must call it."""
        with loopback_sockets(self._meeting.is_loopback):
            group = dist.new_group(list(ranks), timeout=self._timeout)
        if self._rank not in ranks:
            return None
        assert isinstance(group, dist.ProcessGroup)
        self._groups.append(group)
        return group

    def free_group(self, group: dist.ProcessGroup) -> None:
        """Close this rank's connections of a group that has no pending calls."""
        self._groups.remove(group)
        dist.destroy_process_group(group)

    def absence(self, ranks: Iterable[int], *, silence_s: float) -> Absence:
        """Return the ranks that are gone; takes `silence_s` if a rank left without notice."""
        asked = [rank for rank in ranks if rank != self._rank]
        left = self.farewells(asked)
        silent = [] if left else self._heartbeat.silent_ranks(asked, silence_s)
        if self._heartbeat.is_store_gone and self._meeting.keeper not in (None, self._rank):
            silent = [self._meeting.keeper]
        self._lost.update(silent)
        return Absence(tuple(silent), left)

    def close(self, error: BaseException | None = None) -> None:
        """Announce that this rank leaves, wait a while for the others, and free all connections.

        Groups that others may still use are kept until the process exits, because freeing a
        group waits for pending calls, which may never be answered. After an error, only the rank
        that keeps the store waits, since others may be querying the store about a lost rank.
        """
        atexit.unregister(self._leave_at_exit)
        is_together = False
        if not self._heartbeat.is_store_gone:
            with contextlib.suppress(RuntimeError):  # the keeper of the store is gone
                is_together = self._take_leave(error)
        self._heartbeat.stop()
        self.store.close()
        if not is_together:
            self._keep_groups_alive()
        if self._owns_default:
            dist.destroy_process_group()
        else:
            for group in self._groups[1:]:
                dist.destroy_process_group(group)
        self._groups.clear()

    def drop(self) -> None:
        """Break all connections without notice, before connecting to a rank's new process.

        Other ranks that wait for this rank get an error at once.
        """
        atexit.unregister(self._leave_at_exit)
        self._heartbeat.stop()
        self.store.close()
        for group in self._groups:
            group.abort()
        self._keep_groups_alive()
        if self._owns_default:
            dist.destroy_process_group()
        self._groups.clear()

    def _take_leave(self, error: BaseException | None) -> bool:
        """Return whether all ranks have left, so no call is pending."""
        is_keeper = self._meeting.keeper == self._rank
        summary = "has ended" if error is None else f"failed: {type(error).__name__}: {error}"
        self.store.set(f"left/{self._rank}", summary)
        if error is not None and not (is_keeper and isinstance(error, RpcError)):
            return False
        missing = [*self.wait_for("left", _LEAVE_S), *self._lost]
        if not is_keeper:
            self._heartbeat.stop()
            self.store.set(f"gone/{self._rank}", "")
        elif not missing:
            self.wait_for("gone", _LEAVE_S)  # until then, the other ranks use this process's store
        return not missing

    def farewells(self, ranks: Iterable[int]) -> dict[int, str]:
        """Return the ranks that left on their own, with their reasons."""
        return {rank: words for rank in ranks if (words := self._farewell(rank))}

    def _farewell(self, rank: int) -> str:
        """Return the reason that a rank gave for leaving, or "" if it gave none."""
        key = f"left/{rank}"
        try:
            if self._heartbeat.is_store_gone or not self.store.check([key]):
                return ""
            return str(self.store.get(key), "utf-8")
        except RuntimeError:
            return ""

    def _leave_at_exit(self) -> None:
        """Close connections when a process exits without `close`, usually after an exception."""
        self.close(getattr(sys, "last_value", None))

    def _keep_groups_alive(self) -> None:
        for group in self._groups:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


def name_ranks(ranks: Iterable[int]) -> str:
    """Return the ranks as text for messages.

    >>> name_ranks([1]), name_ranks([0, 2])
    ('rank 1', 'ranks 0, 2')
    """
    found = sorted(ranks)
    return f"rank{'s' if len(found) > 1 else ''} {', '.join(map(str, found))}"


def check_gloo_transport() -> None:
    """Raise ConfigError if GLOO_DEVICE_TRANSPORT requests a transport that this torch lacks.

    Torch itself would say "unsupported gloo device", and only once the ranks have met.
    """
    transport = os.environ.get(_TRANSPORT)
    if not transport:
        return
    from torch._C._distributed_c10d import ProcessGroupGloo

    try:
        ProcessGroupGloo.create_device(hostname="127.0.0.1")
    except RuntimeError as error:
        if "unsupported gloo device" not in str(error):
            raise ConfigError(
                f"gloo cannot use {_TRANSPORT}={transport}: {error}; for {_TLS}, check the files "
                f"named by {_TRANSPORT}_{_TLS}_PKEY, _CERT and _CA_FILE"
            ) from error
        raise ConfigError(
            f"{_TRANSPORT} is {transport}, which torch {torch.__version__} does not support. "
            "Unset it, or install a torch that supports it (for TCP_TLS, built with "
            "USE_GLOO_WITH_OPENSSL=1); see docs/collective.md for other ways to protect the traffic"
        ) from error


def warn_of_exposed_traffic(backend: str) -> None:
    """Warn, once per process, that traffic between machines is unprotected.

    Does not warn if the user has chosen TLS or a network interface for every library that `backend`
    uses.
    """
    is_tls = os.environ.get(_TRANSPORT) == _TLS
    exposed = [
        name
        for name, interface in _INTERFACES.items()
        if name in backend and interface not in os.environ and not (name == "gloo" and is_tls)
    ]
    if not exposed or backend in _warned:
        return
    _warned.add(backend)
    chosen = " and ".join(_INTERFACES[name] for name in exposed)
    _log.warning(
        "ranks on several machines exchange gradients and parameters over %s without encryption or "
        "authentication: anyone who can reach their ports can read and change the model. Connect "
        "the machines through a private network or a tunnel and name its interface in %s%s. See "
        "docs/collective.md, section Security",
        " and ".join(exposed),
        chosen,
        f", or set {_TRANSPORT}={_TLS} if your torch supports it" if "gloo" in exposed else "",
    )
