"""The launcher on node 0, which tracks all nodes and makes decisions for them."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from functools import partial

from sparsefleet.errors import ConfigError, PeerLostError, RpcError
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
    Wire,
    message,
    new_job_id,
)

__all__ = ["HubLink"]

_CODE_OF_WRONG_COMMAND = 2
_MAX_UNPROVEN = 64
"""Connections that have not yet proven the key; each has a thread and a descriptor."""


class HubLink(NodeLink):
    """Node 0's link to the other nodes.

    Listens when constructed; raises ConfigError if it cannot.
    """

    def __init__(self, config: LinkConfig, wake: Callable[[], None]) -> None:
        super().__init__(config, wake)
        self.job_id = new_job_id()
        self._wires: dict[int, Wire] = {}
        self._unproven: dict[socket.socket, None] = {}  # oldest first
        self._welcomed = 0
        self._done: set[int] = set()
        self._restarts = 0
        self._last_word = ""
        self._all_joined = threading.Event()
        self._join_deadline = time.monotonic() + config.join_timeout_s
        host = config.nodes[0]
        try:
            self._listener = socket.create_server((host.strip("[]"), config.port))
        except OSError as error:
            raise ConfigError(
                f"node 0 cannot listen for the other nodes at {host}:{config.port} "
                f"({error.strerror}); check that {host} is an address of this machine and that "
                "the port is free"
            ) from error
        self._start(self._accept)

    def report_done(self, restarts: int) -> None:
        self._node_done(0, restarts)

    def report_crash(self, restarts: int, exit_code: int, text: str) -> None:
        self._crashed(restarts, exit_code, text)

    def report_failure(self, exit_code: int, text: str) -> None:
        self._over.set()
        self._broadcast(message("end", exit_code, text=text))

    def _linger(self) -> None:
        if self._last_word:
            self._all_joined.wait(LINGER_S)

    def _end_sending(self) -> None:
        with self._lock:
            for wire in self._wires.values():
                wire.end_sending()

    def _accept(self) -> None:
        self._listener.settimeout(RETRY_S)
        with self._listener:
            while not self._closing.is_set():
                try:
                    connection, _ = self._listener.accept()
                except TimeoutError:
                    self._check_join_deadline()
                    continue
                except OSError:  # no descriptors left, or the other side is gone already
                    self._check_join_deadline()
                    self._closing.wait(RETRY_S)
                    continue
                self._make_room()
                with self._lock:
                    self._unproven[connection] = None
                self._start(partial(self._serve, connection))

    def _make_room(self) -> None:
        """If too many connections have not yet proved that they have the key, close the oldest."""
        with self._lock:
            if len(self._unproven) < _MAX_UNPROVEN + len(self._config.nodes):
                return
            oldest = next(iter(self._unproven))
            del self._unproven[oldest]
            with contextlib.suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)  # its thread sees end of file and finishes

    def _check_join_deadline(self) -> None:
        if self._over.is_set() or time.monotonic() < self._join_deadline:
            return
        with self._lock:
            ranks = range(1, len(self._config.nodes))
            missing = [self._name(rank) for rank in ranks if rank not in self._wires]
        if missing:
            within = f"{self._config.join_timeout_s:.0f} s"
            self._fail(CODE_OF_LOST_NODE, f"not joined within {within}: {', '.join(missing)}")

    def _name(self, rank: int) -> str:
        return f"node {rank} ({self._config.nodes[rank]})"

    def _serve(self, connection: socket.socket) -> None:
        """Serve one connection, which may come from another launcher or from an unknown client."""
        with connection:
            try:
                wire = Wire(connection, self._config.key, is_hub=True, timeout_s=HANDSHAKE_S)
                wire.send("alive")  # lets the leaf detect a different key
                rank = self._admit(connection, wire, wire.receive(HANDSHAKE_S))
            except (RpcError, OSError, ValueError):
                return  # not part of the job, so its errors do not concern us
            finally:
                with self._lock:
                    self._unproven.pop(connection, None)
            if rank is None:
                return
            try:
                self._welcome(wire, rank)
                self._follow(wire, partial(self._handle, rank))
            except (RpcError, OSError) as error:
                if not self._over.is_set():
                    self._fail(CODE_OF_LOST_NODE, f"{self._name(rank)} is lost: {error}")

    def _welcome(self, wire: Wire, rank: int) -> None:
        with self._lock:
            last_word = self._last_word
        # A leaf that has already left may have sent the reason, so read that first.
        with contextlib.suppress(PeerLostError):
            wire.send(f"welcome {self.job_id}")
            if last_word:
                wire.send(last_word)
        self._emit(Joined(f"{self._name(rank)} joined"))
        with self._lock:
            self._welcomed += 1
            if self._welcomed == len(self._config.nodes) - 1:
                self._all_joined.set()

    def _admit(self, connection: socket.socket, wire: Wire, text: str) -> int | None:
        """Return the rank of a node that may join, or None if it was rejected with a reason."""
        word, rank_text, shape = text.split(" ", 2)
        rank = int(rank_text)
        with self._lock:
            if word != "join" or not 0 < rank < len(self._config.nodes):
                complaint = "no such node"
            elif shape != self._config.shape:
                complaint = f"started for {shape}, but node 0 was started for {self._config.shape}"
            elif rank in self._wires:
                complaint = "this node has already joined; check --node-rank"
            else:
                self._wires[rank] = wire
                self._unproven.pop(connection, None)
                return rank
        wire.send(message("end", _CODE_OF_WRONG_COMMAND, text=f"node {rank}: {complaint}"))
        wire.end_sending()
        return None

    def _handle(self, rank: int, text: str) -> bool:
        word, _, rest = text.partition(" ")
        if word == "done":
            self._node_done(rank, int(rest))
        elif word == "crash":
            restarts, code, reason = rest.split(" ", 2)
            self._crashed(int(restarts), int(code), reason)
        elif word == "fail":
            code, _, reason = rest.partition(" ")
            self._fail(int(code), reason)
        return False  # the leaf closes

    def _node_done(self, rank: int, restarts: int) -> None:
        with self._lock:
            if restarts != self._restarts:
                return
            self._done.add(rank)
            if len(self._done) < len(self._config.nodes):
                return
        self._broadcast("all-done")
        self._emit(AllDone())

    def _crashed(self, restarts: int, exit_code: int, text: str) -> None:
        """Handle a failed process. Its failure may make other nodes fail, so only the first failure
        after each start of the job counts.
        """
        with self._lock:
            if restarts != self._restarts:
                return
            is_last = restarts >= self._config.max_restarts
            if not is_last:
                self._restarts += 1
                self._done.clear()
        if is_last:
            self._fail(exit_code, text)
            return
        self._broadcast(message("restart", restarts + 1, text=text))
        self._emit(Restart(restarts + 1, text))

    def _fail(self, exit_code: int, text: str) -> None:
        self._broadcast(message("end", exit_code, text=text))
        self._emit(OtherNodeFailed(exit_code, text))

    def _broadcast(self, text: str) -> None:
        with self._lock:
            self._last_word = text
            wires = list(self._wires.values())
        for wire in wires:
            try:
                wire.send(text)
            except PeerLostError:
                continue  # the leaf's own thread also notices
