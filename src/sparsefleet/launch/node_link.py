"""Coordinate the launchers of several nodes, so that servers stay until all workers have finished
everywhere, and a failure on one node stops the job on all.

The launcher of node 0 is the hub; the others (leaves) connect to it. Messages to the hub:
`join RANK SHAPE`, `done RESTARTS`, `crash RESTARTS CODE TEXT`, `fail CODE TEXT` and `alive`; from
the hub: `welcome JOB_ID`, `all-done`, `restart RESTARTS TEXT`, `end CODE TEXT` and `alive`.
RESTARTS is the number of restarts so far; messages about an earlier start are ignored.

torch.distributed's TCPStore could carry these messages, but it has no authentication: anyone who
reaches its port could stop or restart the job. The store also does not report that a peer is gone,
so `alive` and its deadline would still be needed, and each launcher would have to import torch,
which takes a second and 200 MB.
"""

from __future__ import annotations

import contextlib
import queue
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

from sparsefleet.errors import PeerLostError
from sparsefleet.launch.link_wire import Wire

__all__ = [
    "AllDone",
    "Joined",
    "LinkConfig",
    "LinkEvent",
    "NodeLink",
    "OtherNodeFailed",
    "Restart",
    "message",
    "new_job_id",
]

CODE_OF_LOST_NODE = 1
HANDSHAKE_S = 10.0
LINGER_S = 5.0  # enough for a launcher that is still connecting
RETRY_S = 0.5
_ALIVE_S = 2.0
_CLOSE_S = 5.0
_MAX_TEXT = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkConfig:
    """The settings that the launchers of one job share, except for `rank`."""

    nodes: tuple[str, ...]
    rank: int
    port: int
    """The hub's port on the first node in `nodes`."""
    key: bytes = field(repr=False)
    shape: str
    """A description of the job; launchers with a different description are rejected."""
    max_restarts: int = 0
    join_timeout_s: float = 300.0
    silence_s: float = 20.0
    """A node that is silent for this long is considered lost."""


@dataclass(frozen=True, slots=True)
class AllDone:
    """The workers of all nodes succeeded."""


@dataclass(frozen=True, slots=True)
class OtherNodeFailed:
    """A different node ended the job."""

    exit_code: int
    text: str


@dataclass(frozen=True, slots=True)
class Joined:
    """A node has joined. On the hub, this is the named node; on a leaf, the leaf itself."""

    text: str


@dataclass(frozen=True, slots=True)
class Restart:
    """A process on some node failed, so all processes restart."""

    restarts: int
    """The number of restarts, including this one."""
    text: str


LinkEvent = AllDone | Joined | OtherNodeFailed | Restart


class NodeLink(ABC):
    """The base class of the hub's and the leaves' links. No event follows one that ends the job."""

    def __init__(self, config: LinkConfig, wake: Callable[[], None]) -> None:
        self._config = config
        self._wake = wake
        self.job_id = ""
        """The id that the hub gave the job; empty on a leaf that has not joined yet."""
        self._events: queue.SimpleQueue[LinkEvent] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._closing = threading.Event()
        self._over = threading.Event()
        self._lock = threading.Lock()

    def event(self) -> LinkEvent | None:
        """Return the next event, or None. `wake` is called whenever an event is queued."""
        try:
            return self._events.get_nowait()
        except queue.Empty:
            return None

    @property
    def is_over(self) -> bool:
        """Return whether the event that ends the job has been queued."""
        return self._over.is_set()

    @abstractmethod
    def report_done(self, restarts: int) -> None:
        """Report that all workers on this node succeeded."""

    @abstractmethod
    def report_crash(self, restarts: int, exit_code: int, text: str) -> None:
        """Report a failed process on this node. A Restart or OtherNodeFailed follows."""

    @abstractmethod
    def report_failure(self, exit_code: int, text: str) -> None:
        """Report that this node is ending the job."""

    def close(self) -> None:
        """Deliver pending messages, then stop all threads and close all connections.

        A node that is still joining is also notified of a failure.
        """
        self._linger()
        self._closing.set()
        self._end_sending()
        deadline = time.monotonic() + _CLOSE_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    @abstractmethod
    def _linger(self) -> None:
        """Wait, for a limited time, until all nodes have been notified that the job has ended."""

    @abstractmethod
    def _end_sending(self) -> None: ...

    def _start(self, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, daemon=True, name="launch-link")
        thread.start()
        self._threads = [*(each for each in self._threads if each.is_alive()), thread]

    def _emit(self, event: LinkEvent) -> None:
        if self._over.is_set():
            return
        if isinstance(event, (AllDone, OtherNodeFailed)):
            self._over.set()
        self._events.put(event)
        self._wake()

    def _follow(self, wire: Wire, handle: Callable[[str], bool]) -> None:
        """Receive messages until `handle` reports the last message. Sends `alive` periodically."""
        heard = time.monotonic()
        sent_at = 0.0
        while True:
            if not self._closing.is_set() and time.monotonic() - sent_at >= _ALIVE_S:
                with contextlib.suppress(
                    PeerLostError
                ):  # messages sent before the connection closed come first
                    wire.send("alive")
                sent_at = time.monotonic()
            try:
                text = wire.receive(_ALIVE_S)
            except TimeoutError:
                silent_s = time.monotonic() - heard
                if silent_s > self._config.silence_s:
                    raise PeerLostError(f"no message for {silent_s:.0f} s") from None
                continue
            heard = time.monotonic()
            if text != "alive" and handle(text):
                return


def new_job_id() -> str:
    """Return a random id for a job."""
    return secrets.token_hex(8)


def message(word: str, *numbers: int, text: str) -> str:
    """Return one message line of bounded length.

    >>> message("fail", 3, text="no\\nmemory")
    'fail 3 no memory'
    """
    return " ".join([word, *map(str, numbers), *text.split()])[:_MAX_TEXT]
