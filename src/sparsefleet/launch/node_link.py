"""How the launchers of several nodes act as one: servers stay until all workers are done
everywhere, and a failure on one node ends the job on all.

The launcher of node 0 is the hub, to which the others (leaves) connect. Messages:
`join RANK SHAPE`, `done RESTARTS`, `crash RESTARTS CODE TEXT`, `fail CODE TEXT` and `alive` to the
hub; `welcome`, `all-done`, `restart RESTARTS TEXT`, `end CODE TEXT` and `alive` from it. RESTARTS
is how often the job was started anew: what is said of an earlier start does not count.
"""

from __future__ import annotations

import contextlib
import queue
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
]

CODE_OF_LOST_NODE = 1
HANDSHAKE_S = 10.0
LINGER_S = 5.0  # a launcher that tries to reach another one succeeds within this
RETRY_S = 0.5
_ALIVE_S = 2.0
_CLOSE_S = 5.0
_MAX_TEXT = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkConfig:
    """What the launchers of one job agree on, but for `rank`."""

    nodes: tuple[str, ...]
    rank: int
    port: int
    """Where the hub listens, on the first of `nodes`."""
    key: bytes = field(repr=False)
    shape: str
    """The job in words; launchers with another one are refused."""
    max_restarts: int = 0
    join_timeout_s: float = 300.0
    silence_s: float = 20.0
    """A node that says nothing for this long is lost."""


@dataclass(frozen=True, slots=True)
class AllDone:
    """The workers of all nodes have ended well."""


@dataclass(frozen=True, slots=True)
class OtherNodeFailed:
    """The job is over because of another node."""

    exit_code: int
    text: str


@dataclass(frozen=True, slots=True)
class Joined:
    """A node is there: seen from the hub the one named, seen from a leaf itself."""

    text: str


@dataclass(frozen=True, slots=True)
class Restart:
    """A process of some node failed; all are to start anew."""

    restarts: int
    """How often that has happened, this time included."""
    text: str


LinkEvent = AllDone | Joined | OtherNodeFailed | Restart


class NodeLink(ABC):
    """What hub and leaves have in common. The first event that ends the job is the last one."""

    def __init__(self, config: LinkConfig, wake: Callable[[], None]) -> None:
        self._config = config
        self._wake = wake
        self._events: queue.SimpleQueue[LinkEvent] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._closing = threading.Event()
        self._over = threading.Event()
        self._lock = threading.Lock()

    def event(self) -> LinkEvent | None:
        """What has come in, if anything; `wake` was called for it."""
        try:
            return self._events.get_nowait()
        except queue.Empty:
            return None

    @abstractmethod
    def report_done(self, restarts: int) -> None:
        """The workers of this node have ended well."""

    @abstractmethod
    def report_crash(self, restarts: int, exit_code: int, text: str) -> None:
        """A process of this node failed: a Restart follows, or the end as OtherNodeFailed."""

    @abstractmethod
    def report_failure(self, exit_code: int, text: str) -> None:
        """The job is over because of this node."""

    def close(self) -> None:
        """Ends all threads and connections, once what was said has been delivered.

        A failure is also told to a node which is only about to join.
        """
        self._linger()
        self._closing.set()
        self._end_sending()
        deadline = time.monotonic() + _CLOSE_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    @abstractmethod
    def _linger(self) -> None:
        """Waits a while for nodes that have not heard yet that the job is over."""

    @abstractmethod
    def _end_sending(self) -> None: ...

    def _start(self, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, daemon=True, name="launch-link")
        self._threads.append(thread)
        thread.start()

    def _emit(self, event: LinkEvent) -> None:
        if self._over.is_set():
            return
        if isinstance(event, (AllDone, OtherNodeFailed)):
            self._over.set()
        self._events.put(event)
        self._wake()

    def _follow(self, wire: Wire, handle: Callable[[str], bool]) -> None:
        """Receives until `handle` says it was the last, telling now and then of being alive."""
        heard = time.monotonic()
        said = 0.0
        while True:
            if not self._closing.is_set() and time.monotonic() - said >= _ALIVE_S:
                with contextlib.suppress(PeerLostError):  # what it said before it went comes first
                    wire.send("alive")
                said = time.monotonic()
            try:
                text = wire.receive(_ALIVE_S)
            except TimeoutError:
                silent_s = time.monotonic() - heard
                if silent_s > self._config.silence_s:
                    raise PeerLostError(f"silent for {silent_s:.0f} s") from None
                continue
            heard = time.monotonic()
            if text != "alive" and handle(text):
                return


def message(word: str, *numbers: int, text: str) -> str:
    """One line, not too long.

    >>> message("fail", 3, text="no\\nmemory")
    'fail 3 no memory'
    """
    return " ".join([word, *map(str, numbers), *text.split()])[:_MAX_TEXT]
