"""How the launchers of several nodes act as one: servers stay until all workers are done
everywhere, and a failure on one node ends the job on all.

The launcher of node 0 is the hub, to which the others (leaves) connect. Messages:
`join RANK SHAPE`, `done`, `fail CODE TEXT` and `alive` to the hub; `welcome`, `all-done`,
`end CODE TEXT` and `alive` from it.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from sparsefleet.errors import AuthError, ConfigError, PeerLostError, ProtocolError, RpcError
from sparsefleet.launch.link_wire import Wire

__all__ = [
    "AllDone",
    "HubLink",
    "Joined",
    "LeafLink",
    "LinkConfig",
    "LinkEvent",
    "NodeLink",
    "OtherNodeFailed",
]

_ALIVE_S = 2.0
_HANDSHAKE_S = 10.0
_RETRY_S = 0.5
_CLOSE_S = 5.0
_LINGER_S = 5.0  # a launcher that tries to reach another one succeeds within this
_MAX_TEXT = 1000
_CODE_OF_LOST_NODE = 1
_CODE_OF_WRONG_COMMAND = 2


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


LinkEvent = AllDone | Joined | OtherNodeFailed


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
    def report_done(self) -> None:
        """The workers of this node have ended well."""

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
        if not isinstance(event, Joined):
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


class HubLink(NodeLink):
    """The link of node 0. Listens from the constructor on; raises ConfigError if it cannot."""

    def __init__(self, config: LinkConfig, wake: Callable[[], None]) -> None:
        super().__init__(config, wake)
        self._wires: dict[int, Wire] = {}
        self._done: set[int] = set()
        self._last_word = ""
        self._all_joined = threading.Event()
        self._join_deadline = time.monotonic() + config.join_timeout_s
        host = config.nodes[0]
        try:
            self._listener = socket.create_server((host.strip("[]"), config.port))
        except OSError as error:
            raise ConfigError(
                f"node 0 cannot listen for the other nodes at {host}:{config.port} "
                f"({error.strerror}): is {host} an address of this machine, and the port free?"
            ) from error
        self._start(self._accept)

    def report_done(self) -> None:
        self._node_done(0)

    def report_failure(self, exit_code: int, text: str) -> None:
        self._over.set()
        self._broadcast(_with_code("end", exit_code, text))

    def _linger(self) -> None:
        if self._last_word:
            self._all_joined.wait(_LINGER_S)

    def _end_sending(self) -> None:
        with self._lock:
            for wire in self._wires.values():
                wire.end_sending()

    def _accept(self) -> None:
        self._listener.settimeout(_RETRY_S)
        with self._listener:
            while not self._closing.is_set():
                try:
                    connection, _ = self._listener.accept()
                except TimeoutError:
                    self._check_join_deadline()
                    continue
                self._start(partial(self._serve, connection))

    def _check_join_deadline(self) -> None:
        if self._over.is_set() or time.monotonic() < self._join_deadline:
            return
        with self._lock:
            ranks = range(1, len(self._config.nodes))
            missing = [self._name(rank) for rank in ranks if rank not in self._wires]
        if missing:
            within = f"{self._config.join_timeout_s:.0f} s"
            self._fail(_CODE_OF_LOST_NODE, f"not joined within {within}: {', '.join(missing)}")

    def _name(self, rank: int) -> str:
        return f"node {rank} ({self._config.nodes[rank]})"

    def _serve(self, connection: socket.socket) -> None:
        """One connection, from a launcher or from a stranger."""
        with connection:
            try:
                wire = Wire(connection, self._config.key, is_hub=True, timeout_s=_HANDSHAKE_S)
                wire.send("alive")  # lets the leaf see by itself if the keys differ
                rank = self._admit(wire, wire.receive(_HANDSHAKE_S))
            except (RpcError, OSError, ValueError):
                return  # a stranger, whose errors are not the job's
            if rank is None:
                return
            try:
                self._welcome(wire, rank)
                self._follow(wire, partial(self._handle, rank))
            except (RpcError, OSError) as error:
                if not self._over.is_set():
                    self._fail(_CODE_OF_LOST_NODE, f"{self._name(rank)} is lost: {error}")

    def _welcome(self, wire: Wire, rank: int) -> None:
        with self._lock:
            last_word = self._last_word
            are_all_here = len(self._wires) == len(self._config.nodes) - 1
        # A leaf that has gone already may have said why: that is still to be read.
        with contextlib.suppress(PeerLostError):
            wire.send("welcome")
            if last_word:
                wire.send(last_word)
        self._emit(Joined(f"{self._name(rank)} joined"))
        if are_all_here:
            self._all_joined.set()

    def _admit(self, wire: Wire, text: str) -> int | None:
        """The rank of a node that may join; None if it was told why not."""
        word, rank_text, shape = text.split(" ", 2)
        rank = int(rank_text)
        with self._lock:
            if word != "join" or not 0 < rank < len(self._config.nodes):
                complaint = "no such node"
            elif shape != self._config.shape:
                complaint = f"started for {shape}, but node 0 for {self._config.shape}"
            elif rank in self._wires:
                complaint = "this node has joined already: check --node-rank"
            else:
                self._wires[rank] = wire
                return rank
        wire.send(_with_code("end", _CODE_OF_WRONG_COMMAND, f"node {rank}: {complaint}"))
        wire.end_sending()
        return None

    def _handle(self, rank: int, text: str) -> bool:
        word, _, rest = text.partition(" ")
        if word == "done":
            self._node_done(rank)
        elif word == "fail":
            code, _, reason = rest.partition(" ")
            self._fail(int(code), reason)
        return False  # the leaf closes

    def _node_done(self, rank: int) -> None:
        with self._lock:
            self._done.add(rank)
            if len(self._done) < len(self._config.nodes):
                return
        self._broadcast("all-done")
        self._emit(AllDone())

    def _fail(self, exit_code: int, text: str) -> None:
        self._broadcast(_with_code("end", exit_code, text))
        self._emit(OtherNodeFailed(exit_code, text))

    def _broadcast(self, text: str) -> None:
        with self._lock:
            self._last_word = text
            wires = list(self._wires.values())
        for wire in wires:
            try:
                wire.send(text)
            except PeerLostError:
                continue  # its own thread sees that, too


class LeafLink(NodeLink):
    """The link of another node. Tries to reach the hub until `join_timeout_s` have passed."""

    def __init__(self, config: LinkConfig, wake: Callable[[], None]) -> None:
        super().__init__(config, wake)
        self._wire: Wire | None = None
        self._unsent: list[str] = []
        self._has_spoken = threading.Event()
        self._start(self._run)

    def report_done(self) -> None:
        self._say("done")

    def report_failure(self, exit_code: int, text: str) -> None:
        self._over.set()
        self._say(_with_code("fail", exit_code, text))

    def _say(self, text: str) -> None:
        """Now, or as soon as there is a connection."""
        with self._lock:
            if self._wire is None:
                self._unsent.append(text)
                return
            try:
                self._wire.send(text)
            except PeerLostError:
                return  # the receiving thread sees that, too

    def _linger(self) -> None:
        if self._unsent:
            self._has_spoken.wait(_LINGER_S)

    def _end_sending(self) -> None:
        with self._lock:
            if self._wire is not None:
                self._wire.end_sending()

    def _run(self) -> None:
        hub = (self._config.nodes[0].strip("[]"), self._config.port)
        where = f"node 0 ({hub[0]}, launcher's port {hub[1]})"
        try:
            connection = self._connect(hub)
            if connection is None:
                return
            with connection:
                wire = Wire(connection, self._config.key, is_hub=False, timeout_s=_HANDSHAKE_S)
                wire.send(f"join {self._config.rank} {self._config.shape}")
                with self._lock:
                    self._wire = wire
                    for text in self._unsent:
                        wire.send(text)
                self._has_spoken.set()
                self._follow(wire, self._handle)
        except AuthError as error:
            self._emit(OtherNodeFailed(_CODE_OF_LOST_NODE, f"{where}: {error}"))
        except (RpcError, OSError) as error:
            self._emit(OtherNodeFailed(_CODE_OF_LOST_NODE, f"{where} is lost: {error}"))

    def _connect(self, hub: tuple[str, int]) -> socket.socket | None:
        """None if the job was over before."""
        deadline = time.monotonic() + self._config.join_timeout_s
        while not self._closing.is_set():
            try:
                return socket.create_connection(hub, timeout=_HANDSHAKE_S)
            except OSError as error:
                if time.monotonic() > deadline:
                    within = f"{self._config.join_timeout_s:.0f} s"
                    raise PeerLostError(f"not reached within {within}: {error}") from error
            self._closing.wait(_RETRY_S)
        return None

    def _handle(self, text: str) -> bool:
        word, _, rest = text.partition(" ")
        if word == "welcome":
            self._emit(Joined(f"joined {self._config.nodes[0]}, node 0"))
            return False
        if word == "all-done":
            self._emit(AllDone())
        elif word == "end":
            code, _, reason = rest.partition(" ")
            self._emit(OtherNodeFailed(int(code), reason))
        else:
            raise ProtocolError(f"unknown message {word!r}")
        return True


def _with_code(word: str, exit_code: int, text: str) -> str:
    one_line = " ".join(text.split())[:_MAX_TEXT]
    return f"{word} {exit_code} {one_line}"
