"""The launcher on a node other than the first, which reports to the hub and obeys its decisions."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

from sparsefleet.errors import AuthError, PeerLostError, ProtocolError, RpcError
from sparsefleet.launch.link_wire import Wire
from sparsefleet.launch.node_link import (
    CODE_OF_LOST_NODE,
    HANDSHAKE_S,
    LINGER_S,
    RETRY_S,
    AllDone,
    Joined,
    LinkConfig,
    NodeLink,
    OtherNodeFailed,
    Restart,
    message,
)

__all__ = ["LeafLink"]


class LeafLink(NodeLink):
    """A link of a node other than the first. Tries to reach the hub for up to `join_timeout_s`."""

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
