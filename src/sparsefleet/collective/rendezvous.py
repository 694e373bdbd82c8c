"""How the ranks of a job find each other: a store of torch.distributed that all reach."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore  # typed there only

from sparsefleet.collective.answering_store import AnsweringStore
from sparsefleet.endpoint import Endpoint, parse_endpoint
from sparsefleet.errors import ConfigError, DeadlineError

__all__ = [
    "MeetingStore",
    "loopback_sockets",
    "missing_keys",
    "open_meeting",
    "second_connection",
]

_INTERFACE = "GLOO_SOCKET_IFNAME"
_FIRST_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.05
# A process keeps its store, for those that still ask it when a world has ended, and for the next
# world; each world finds its keys under a number of its own.
_stores: dict[str, Store] = {}
_times_met: Counter[str] = Counter()


@dataclass(frozen=True, slots=True)
class MeetingStore:
    """A store that all ranks of one world share, and what is known of it."""

    store: Store
    where: str
    """In words."""
    is_loopback: bool
    """All ranks are on this machine."""
    keeper: int | None = None
    """The rank with which the store ends, if there is one."""


def open_meeting(
    meeting_point: str | Store | None,
    rank: int,
    *,
    is_kept_elsewhere: bool,
    is_one_node: bool,
    attempt: int,
    timeout_s: float,
) -> MeetingStore:
    """The store for a new world, as `World.join` describes."""
    keeper = None
    if dist.is_initialized():
        where = "of the script's process group"
        store = dist.distributed_c10d._get_default_store()
    elif isinstance(meeting_point, str):
        where = meeting_point
        keeper = None if is_kept_elsewhere else 0
        endpoint = parse_endpoint(where)
        if endpoint.host == "localhost" and keeper is not None:
            endpoint = Endpoint("127.0.0.1", endpoint.port)  # the name may mean ::1 as well
        is_one_node = is_one_node or endpoint.is_loopback
        if where not in _stores:
            _stores[where] = _open_store(endpoint, is_keeper=keeper == rank, timeout_s=timeout_s)
        store = _stores[where]
    elif meeting_point is not None:
        return MeetingStore(meeting_point, "in their store", is_one_node)
    else:
        raise ConfigError(
            "World.join: several ranks need a meeting_point, 'host:port' of rank 0; started by "
            "`sparsefleet launch --workers N` or torchrun they are told one"
        )
    _times_met[where] += 1
    prefix = f"sparsefleet/{attempt}/{_times_met[where]}"
    return MeetingStore(PrefixStore(prefix, store), where, is_one_node, keeper)


def _open_store(meeting_point: Endpoint, *, is_keeper: bool, timeout_s: float) -> Store:
    """`is_keeper` keeps the store in this process, listening at `meeting_point` only."""
    listener = _listen(meeting_point) if is_keeper else None
    try:
        return TCPStore(
            meeting_point.host,
            meeting_point.port,
            is_master=is_keeper,
            timeout=timedelta(seconds=timeout_s),
            wait_for_workers=False,
            master_listen_fd=listener.detach() if listener is not None else None,
        )
    except RuntimeError as error:
        raise DeadlineError(
            f"nobody listens at the meeting point {meeting_point} of this job after "
            f"{timeout_s:g} s: rank 0 keeps it; was it started, and can it be reached from here?"
        ) from error


def second_connection(store: Store) -> Store:
    """The same store for another thread, which does not wait for calls of the first."""
    if hasattr(store, "clone"):  # torch 2.7 and later
        clone: Store = store.clone()
        return clone
    if isinstance(store, TCPStore):
        return TCPStore(store.host, store.port, is_master=False, wait_for_workers=False)
    return store


def missing_keys(store: AnsweringStore, keys: Iterable[str], timeout_s: float) -> list[str]:
    """Those of the keys that nobody has set, after waiting for them at most that long.

    Asks again and again, as a wait of the store that ends without them is logged by torch.
    """
    deadline = time.monotonic() + timeout_s
    pause_s = _FIRST_PAUSE_S
    missing = list(keys)
    while True:
        missing = [key for key in missing if not store.check([key])]
        remaining = deadline - time.monotonic()
        if not missing or remaining <= 0:
            return missing
        time.sleep(min(pause_s, remaining))
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


@contextlib.contextmanager
def loopback_sockets(is_on: bool) -> Iterator[None]:
    """Has gloo listen on the loopback interface only, for groups made meanwhile.

    Else it takes the address that this machine's name has, which without a network may be none.
    An interface that the user named stays.
    """
    if not is_on or _INTERFACE in os.environ:
        yield
        return
    os.environ[_INTERFACE] = "lo" if sys.platform == "linux" else "lo0"
    try:
        yield
    finally:
        del os.environ[_INTERFACE]


def _listen(meeting_point: Endpoint) -> socket.socket:
    """A store makes its own socket for all interfaces; this one is for the given one only."""
    family = socket.AF_INET6 if ":" in meeting_point.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((meeting_point.host, meeting_point.port))
        listener.listen(socket.SOMAXCONN)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"rank 0 cannot listen at the meeting point {meeting_point} ({error.strerror}): is it "
            "an address of this machine, and the port free?"
        ) from error
    return listener
