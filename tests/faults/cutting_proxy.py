"""A TCP proxy that cuts connections after a number of bytes, or stops forwarding."""

from __future__ import annotations

import random
import selectors
import socket
import threading
from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class _Pair:
    """The two ends of one connection."""

    client: socket.socket
    server: socket.socket
    bytes_left: int
    is_open: bool = True


class CuttingProxy:
    """Sits between clients and one server; clients connect to ``endpoint``.

    Each connection is cut after a random number of bytes (either way) drawn from
    ``bytes_before_cut``; ``cuts`` left says how many are still to come, after which it passes
    everything. ``freeze()`` keeps connections open and silent, ``thaw()`` ends that.

    With ``is_late`` a cut loses nothing that the client has sent: the client is cut off, and the
    rest of its bytes reaches the server at one of the next cuts, or with ``deliver()``, when the
    client has continued without.
    """

    def __init__(
        self,
        target_port: int,
        *,
        cuts: int = 0,
        bytes_before_cut: tuple[int, int] = (1, 5000),
        is_late: bool = False,
    ) -> None:
        self.cuts = cuts
        self._range = bytes_before_cut
        self._is_late = is_late
        self._random = random.Random(7)
        self._target = ("127.0.0.1", target_port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._wake, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ, None)
        self._held: list[tuple[socket.socket, bytes]] = []
        self._held_lock = threading.Lock()
        self._flowing = threading.Event()
        self._flowing.set()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def freeze(self) -> None:
        self._flowing.clear()

    def thaw(self) -> None:
        self._flowing.set()

    def deliver(self, chance: float = 1.0) -> None:
        """Send the delayed bytes, each part with this probability; return when the server has
        handled them.
        """
        with self._held_lock:
            going = [held for held in self._held if self._random.random() < chance]
            self._held = [held for held in self._held if held not in going]
        for server, rest in going:
            with server:
                server.settimeout(30)
                try:
                    server.sendall(rest)
                    server.shutdown(socket.SHUT_WR)
                    while server.recv(65536):  # it closes when it has read the end
                        pass
                except ConnectionError:
                    pass  # it had already closed

    def close(self) -> None:
        self._stopping = True
        self._flowing.set()
        self._wake.send(b"x")
        self._thread.join(10)
        assert not self._thread.is_alive()
        # The thread cannot close it: it may see the stop request before it is woken, and the socket
        # that wakes it must exist until then.
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        for server, _ in self._held:
            server.close()
        self._wake.close()
        self._selector.close()

    def __enter__(self) -> CuttingProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        while not self._stopping:
            for key, _ in self._selector.select():
                self._flowing.wait()
                if key.fileobj is self._listener:
                    self._accept()
                elif key.data is not None and key.data.is_open:  # not cut in this round of events
                    self._pass_on(key.data, from_client=key.fileobj is key.data.client)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        try:
            server = socket.create_connection(self._target)
        except OSError:
            client.close()
            return
        pair = _Pair(client, server, self._random.randint(*self._range))
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(end, selectors.EVENT_READ, pair)

    def _pass_on(self, pair: _Pair, *, from_client: bool) -> None:
        source, sink = (pair.client, pair.server) if from_client else (pair.server, pair.client)
        rest = b""
        try:
            data = source.recv(65536)
            if self.cuts > 0:
                data, rest = data[: pair.bytes_left], data[pair.bytes_left :]
                pair.bytes_left -= len(data)
            if data:
                sink.sendall(data)
        except OSError:
            data = b""
        is_cut = bool(data) and self.cuts > 0 and pair.bytes_left == 0
        if is_cut:
            self.cuts -= 1
            self.deliver(chance=0.25)
        if is_cut or not data:
            self._end(pair, rest if from_client else b"")

    def _end(self, pair: _Pair, rest: bytes) -> None:
        pair.is_open = False
        for end in (pair.client, pair.server):
            self._selector.unregister(end)
        pair.client.close()
        if self._is_late and rest:
            with self._held_lock:
                self._held.append((pair.server, rest))
        else:
            pair.server.close()
