"""Lets the ranks of a job find each other through a torch.distributed store."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from sparsefleet.endpoint import Endpoint, parse_endpoint
from sparsefleet.errors import ConfigError, DeadlineError

if TYPE_CHECKING:
    import torch

__all__ = [
    "AnsweringStore",
    "MeetingStore",
    "backend_of",
    "choose_device",
    "is_cuda_required",
    "loopback_sockets",
    "missing_keys",
    "open_meeting",
    "reopen_meeting",
    "second_connection",
]
_INTERFACE = "GLOO_SOCKET_IFNAME"
_FIRST_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.05
# A process keeps its store after a world is closed, for ranks that still use it and for the next
# world; each world has its own key prefix.
_stores: dict[str, Store] = {}
_times_met: Counter[str] = Counter()
Answer = TypeVar("Answer")
_SECOND_LOOK_S = 1.0
_Call = tuple[Callable[[], Any], futures.Future[Any]]


def choose_device(
    index: int = 0,
    *,
    count: int = 1,
    wanted: str | torch.device | None = None,
    falls_back: bool = False,
) -> torch.device:
    """Return the device for process `index` of the `count` processes on this machine.

    Each process gets its own GPU if torch sees enough GPUs; otherwise all processes use the CPU,
    since they cannot share a GPU for collectives. SPARSEFLEET_REQUIRE_CUDA=1 turns that fallback
    into a ConfigError. `wanted` ("cpu", "cuda:1") selects a device, which must exist; with
    `falls_back`, the result is the CPU if there is no GPU at all.

    >>> choose_device(wanted="cpu")
    device(type='cpu')
    """
    import torch

    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted is not None:
        device = torch.device(wanted)
        if device.type != "cuda" or (device.index or 0) < found:
            return device
        if found or not falls_back:
            raise ConfigError(f"device {device} was requested, but torch sees {_gpus(found)}")
    elif found >= count:
        return torch.device("cuda", index)
    if is_cuda_required():
        raise ConfigError(
            f"SPARSEFLEET_REQUIRE_CUDA is set, but torch sees {_gpus(found)} for {count} "
            f"process{'es' if count > 1 else ''} on this machine: unset it to train on the CPU"
        )
    return torch.device("cpu")


def backend_of(device: torch.device) -> str:
    """Return the torch.distributed backend for tensors on `device` and on the CPU."""
    return "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"


def is_cuda_required() -> bool:
    """Return whether a missing GPU is an error instead of a reason to use the CPU."""
    text = os.environ.get("SPARSEFLEET_REQUIRE_CUDA", "").strip()
    if text not in ("", "0", "1"):
        raise ConfigError(f"SPARSEFLEET_REQUIRE_CUDA must be 0 or 1, got {text!r}")
    return text == "1"


def _gpus(count: int) -> str:
    return f"{count or 'no'} GPU{'s' if count != 1 else ''}"


@dataclass(frozen=True, kw_only=True, slots=True)
class MeetingStore:
    """The torch.distributed store in which the ranks of a world find each other."""

    store: Store
    where: str
    """A description for error messages."""
    is_loopback: bool
    """Whether all ranks are on this machine."""
    keeper: int | None = None
    """The rank whose process holds the store, if any."""
    generation: int | None = None
    """Number of ranks replaced before the store was opened; None if ranks cannot be replaced."""
    attempt: int = 0
    """How many times the job was restarted."""

    def is_outdated(self) -> bool:
        """Return whether a rank has been replaced since the store was opened."""
        return self.generation is not None and _generation(self) > self.generation


def open_meeting(
    meeting_point: str | Store | None,
    rank: int,
    *,
    is_kept_elsewhere: bool,
    is_one_node: bool,
    attempt: int,
    timeout_s: float,
    incarnation: int | None = None,
) -> MeetingStore:
    """Open the store for a new world; for the arguments, see `World.join`."""
    keeper = generation = None
    if dist.is_initialized():
        where = "of the script's process group"
        store = dist.distributed_c10d._get_default_store()
    elif isinstance(meeting_point, str):
        where = meeting_point
        keeper = None if is_kept_elsewhere else 0
        endpoint = parse_endpoint(where)
        if endpoint.host == "localhost" and keeper is not None:
            endpoint = Endpoint("127.0.0.1", endpoint.port)  # the name may also resolve to ::1
        is_one_node = is_one_node or endpoint.is_loopback
        if where not in _stores:
            _stores[where] = _open_store(endpoint, is_keeper=keeper == rank, timeout_s=timeout_s)
            generation = None if incarnation is None else 0
        store = _stores[where]
    elif meeting_point is not None:
        return MeetingStore(store=meeting_point, where="the given store", is_loopback=is_one_node)
    else:
        raise ConfigError(
            "World.join: several ranks need a meeting_point, the 'host:port' of rank 0; "
            "`sparsefleet launch --workers N` and torchrun set it"
        )
    _times_met[where] += 1
    prefix = f"sparsefleet/{attempt}/{_times_met[where]}"
    if incarnation and generation is not None:
        generation = store.add(_generation_key(attempt), 1)
        prefix = _generation_prefix(attempt, generation)
    return MeetingStore(
        store=PrefixStore(prefix, store),
        where=where,
        is_loopback=is_one_node,
        keeper=keeper,
        generation=generation,
        attempt=attempt,
    )


def reopen_meeting(meeting: MeetingStore, *, timeout_s: float) -> MeetingStore:
    """Return the store in which ranks meet after one of them was replaced.

    Waits until the new process has started that meeting; raises DeadlineError after `timeout_s`. If
    the rank that kept the store was replaced, a new store is returned.
    """
    assert meeting.generation is not None
    deadline = time.monotonic() + timeout_s
    known = meeting.generation
    while True:
        remaining_s = deadline - time.monotonic()
        if remaining_s <= 0:
            raise DeadlineError(
                f"no process replaced a lost rank within {timeout_s:g} s: see the launcher's log"
            )
        try:
            found = _generation(meeting)
        except RuntimeError:  # its keeper is gone, along with everything in it
            endpoint = parse_endpoint(meeting.where)
            _stores[meeting.where] = _open_store(endpoint, is_keeper=False, timeout_s=remaining_s)
            known = 0
            continue
        if found > known:
            store = PrefixStore(_generation_prefix(meeting.attempt, found), _stores[meeting.where])
            return replace(meeting, store=store, generation=found)
        time.sleep(_LONGEST_PAUSE_S)


def _generation(meeting: MeetingStore) -> int:
    return int(_stores[meeting.where].add(_generation_key(meeting.attempt), 0))


def _generation_key(attempt: int) -> str:
    return f"sparsefleet/{attempt}/generation"


def _generation_prefix(attempt: int, generation: int) -> str:
    return f"sparsefleet/{attempt}/generation-{generation}"


def _open_store(meeting_point: Endpoint, *, is_keeper: bool, timeout_s: float) -> Store:
    """Connect to the store, or hold it in this process, listening only at `meeting_point`."""
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
            f"could not connect to the rendezvous at {meeting_point} within {timeout_s:g} s: "
            "check that rank 0, which listens there, is running and reachable from this machine"
        ) from error


def second_connection(store: Store) -> Store:
    """Return the store with its own connection, if possible, for calls from another thread."""
    if hasattr(store, "clone"):  # torch 2.7 and later
        clone: Store = store.clone()
        return clone
    if isinstance(store, TCPStore):
        return TCPStore(store.host, store.port, is_master=False, wait_for_workers=False)
    return store


def missing_keys(store: AnsweringStore, keys: Iterable[str], timeout_s: float) -> list[str]:
    """Return the keys that no rank has set within `timeout_s`.

    Polls, because torch logs a message when a wait on the store times out.
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
    """Make gloo listen only on the loopback interface, for groups created inside.

    By default, gloo uses the address of this machine's host name, which may not exist without a
    network. An interface chosen by the user is kept.
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
    """Listen only at the given address; a store's own socket would listen on all interfaces."""
    family = socket.AF_INET6 if ":" in meeting_point.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((meeting_point.host, meeting_point.port))
        listener.listen(socket.SOMAXCONN)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"rank 0 cannot listen at the rendezvous address {meeting_point} ({error.strerror}): "
            "use an address of its machine and a free port"
        ) from error
    return listener


class AnsweringStore:
    """A store whose calls return within `answer_s`. Thread-safe.

    torch's own calls wait forever if the network to the store's keeper fails silently. An
    unanswered call raises DistNetworkError; from then on, every call raises it immediately, because
    the unanswered call still holds the connection.

    >>> store = AnsweringStore(dist.HashStore())
    >>> store.set("rank", "3")
    >>> store.get("rank"), store.check(["host"])
    (b'3', False)
    """

    def __init__(self, store: Store, *, answer_s: float = 10.0) -> None:
        self.plain = store
        """The underlying store."""
        self._answer_s = answer_s
        self._is_silent = False
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        # A daemon, since it may be waiting for an answer when the process exits.
        threading.Thread(target=self._run, daemon=True, name="collective-store").start()

    def set(self, key: str, value: str | bytes) -> None:
        """Set the value of a key."""
        self._ask(lambda: self.plain.set(key, value))  # type: ignore[arg-type]  # takes bytes, too

    def get(self, key: str) -> bytes:
        """Return the value of a key that exists."""
        return self._ask(lambda: self.plain.get(key))

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all keys exist."""
        return self._ask(lambda: self.plain.check(list(keys)))

    def delete_key(self, key: str) -> bool:
        """Delete a key; return whether it existed."""
        return self._ask(lambda: self.plain.delete_key(key))

    def close(self) -> None:
        """Stop accepting calls."""
        self._is_silent = True
        self._calls.put(None)

    def _ask(self, call: Callable[[], Answer]) -> Answer:
        answer: futures.Future[Answer] = futures.Future()
        if not self._is_silent:
            self._calls.put((call, answer))
            # Check twice: if all threads were blocked, an answer may have gone unnoticed.
            for timeout_s in (self._answer_s, _SECOND_LOOK_S):
                if futures.wait([answer], timeout_s).done:
                    return answer.result()
            self._is_silent = True
        raise dist.DistNetworkError(
            f"the store that ranks share did not answer within {self._answer_s:g} s: the process "
            "that keeps it, or the network to it, is down"
        )

    def _run(self) -> None:
        while (asked := self._calls.get()) is not None:
            call, answer = asked
            try:
                answer.set_result(call())
            except BaseException as error:
                answer.set_exception(error)
