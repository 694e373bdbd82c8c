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
import hashlib
import hmac
import queue
import secrets
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

from sparsefleet.errors import AuthError, PeerLostError, ProtocolError, RpcError

__all__ = [
    "AllDone",
    "Joined",
    "LeafLink",
    "LinkConfig",
    "LinkEvent",
    "NodeLink",
    "OtherNodeFailed",
    "Restart",
    "Wire",
    "message",
    "new_job_id",
]

# A connection between the launchers of two nodes, for short messages authenticated by the job key.
#
# Messages are text lines over TCP. Each side first sends a random number; every later line carries
# an HMAC-SHA256, keyed by the job key, over both numbers, the sender's role, the line number and
# the text. No one without the key can join, or alter, repeat or reorder lines. The text is not
# secret.

_MAX_LINE_BYTES = 4096
_GREETING = "sparsefleet-launch-1"


class Wire:
    """A connection to another launcher. The constructor exchanges greetings within `timeout_s`.

    Only one thread may receive; any thread may call `send`.
    """

    def __init__(
        self, connection: socket.socket, key: bytes, *, is_hub: bool, timeout_s: float
    ) -> None:
        self._socket = connection
        self._key = key
        self._side, self._other_side = ("hub", "leaf") if is_hub else ("leaf", "hub")
        self._sent = 0
        self._received = 0
        self._buffer = b""
        self._lock = threading.Lock()
        own = secrets.token_hex(16)
        connection.settimeout(timeout_s)
        connection.sendall(f"{_GREETING} {own}\n".encode())
        greeting, _, other = self._read_line(time.monotonic() + timeout_s).partition(" ")
        if greeting != _GREETING or len(other) != len(own):
            raise ProtocolError("the other side is not a sparsefleet launcher of this version")
        self._session = f"{own} {other}" if is_hub else f"{other} {own}"

    def send(self, text: str) -> None:
        """Send one message. Raises PeerLostError if the connection is gone."""
        with self._lock:
            line = f"{self._mac(self._side, self._sent, text)} {text}\n".encode()
            self._sent += 1
            try:
                self._socket.sendall(line)
            except OSError as error:
                raise PeerLostError(f"connection between launchers lost: {error}") from error

    def receive(self, timeout_s: float) -> str:
        """Return the next message. Raises TimeoutError, AuthError, or PeerLostError once closed."""
        mac, _, text = self._read_line(time.monotonic() + timeout_s).partition(" ")
        wanted = self._mac(self._other_side, self._received, text)
        if not hmac.compare_digest(mac.encode(), wanted.encode()):
            raise AuthError("the other launcher has a different job key")
        self._received += 1
        return text

    def end_sending(self) -> None:
        """Stop sending; the peer still receives everything already sent."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def _mac(self, side: str, number: int, text: str) -> str:
        message = f"{self._session} {side} {number} {text}".encode()
        return hmac.new(self._key, message, hashlib.sha256).hexdigest()

    def _read_line(self, deadline: float) -> str:
        while b"\n" not in self._buffer:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise TimeoutError
            if len(self._buffer) > _MAX_LINE_BYTES:
                raise ProtocolError(
                    f"a message from another launcher has more than {_MAX_LINE_BYTES:,} bytes"
                )
            self._socket.settimeout(remaining)
            try:
                chunk = self._socket.recv(_MAX_LINE_BYTES)
            except TimeoutError:
                raise
            except OSError as error:
                raise PeerLostError(f"connection between launchers lost: {error}") from error
            if not chunk:
                raise PeerLostError("the other launcher closed the connection")
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode("utf-8", "replace")


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


class LeafLink(NodeLink):
    """Links a node other than the first to the hub. Tries to connect for up to `join_timeout_s`."""

    def __init__(self, config: LinkConfig, wake: Callable[[], None]) -> None:
        super().__init__(config, wake)
        self._wire: Wire | None = None
        self._early: list[str] = []  # reported before the hub's welcome; sent on each connection
        self._is_welcome = False
        self._has_spoken = threading.Event()
        self._start(self._run)

    def report_done(self, restarts: int) -> None:
        self._send_soon(f"done {restarts}")

    def report_crash(self, restarts: int, exit_code: int, text: str) -> None:
        self._send_soon(message("crash", restarts, exit_code, text=text))

    def report_failure(self, exit_code: int, text: str) -> None:
        self._over.set()
        self._send_soon(message("fail", exit_code, text=text))

    def _send_soon(self, text: str) -> None:
        """Send a message now, or as soon as there is a connection to the hub."""
        with self._lock:
            if not self._is_welcome:
                self._early.append(text)
            if self._wire is None:
                return
            try:
                self._wire.send(text)
            except PeerLostError:
                return  # the receiving thread also notices

    def _linger(self) -> None:
        if self._early:
            self._has_spoken.wait(LINGER_S)

    def _end_sending(self) -> None:
        with self._lock:
            if self._wire is not None:
                self._wire.end_sending()

    def _run(self) -> None:
        hub = (self._config.nodes[0].strip("[]"), self._config.port)
        where = f"node 0 ({hub[0]}, launcher's port {hub[1]})"
        deadline = time.monotonic() + self._config.join_timeout_s
        while not self._closing.is_set():
            try:
                with socket.create_connection(hub, timeout=HANDSHAKE_S) as connection:
                    self._join(connection)
                return
            except (AuthError, ProtocolError) as error:
                self._emit(OtherNodeFailed(CODE_OF_LOST_NODE, f"{where}: {error}"))
                return
            except (RpcError, OSError) as error:
                # The hub drops connections that have not joined yet if strangers open many.
                with self._lock:
                    self._wire = None
                self._has_spoken.clear()
                if self._is_welcome:
                    self._emit(OtherNodeFailed(CODE_OF_LOST_NODE, f"{where} is lost: {error}"))
                    return
                if time.monotonic() > deadline:
                    within = f"{self._config.join_timeout_s:.0f} s"
                    text = f"{where} is lost: unreachable for {within}: {error}"
                    self._emit(OtherNodeFailed(CODE_OF_LOST_NODE, text))
                    return
            self._closing.wait(RETRY_S)

    def _join(self, connection: socket.socket) -> None:
        """Join the job over this connection, and handle the hub's messages until the job ends."""
        wire = Wire(connection, self._config.key, is_hub=False, timeout_s=HANDSHAKE_S)
        wire.send(f"join {self._config.rank} {self._config.shape}")
        with self._lock:
            self._wire = wire
            for text in self._early:
                wire.send(text)
        self._has_spoken.set()
        self._follow(wire, self._handle)

    def _handle(self, text: str) -> bool:
        word, _, rest = text.partition(" ")
        if word == "welcome":
            self.job_id = rest
            with self._lock:
                self._is_welcome = True
            self._emit(Joined(f"joined {self._config.nodes[0]}, node 0"))
            return False
        if word == "restart":
            restarts, _, reason = rest.partition(" ")
            self._emit(Restart(int(restarts), reason))
            return False
        if word == "all-done":
            self._emit(AllDone())
        elif word == "end":
            code, _, reason = rest.partition(" ")
            self._emit(OtherNodeFailed(int(code), reason))
        else:
            raise ProtocolError(f"unknown message {word!r} from node 0")
        return True
