"""A TCP proxy that cuts connections after so many bytes, or stops passing bytes at all."""

from __future__ import annotations

import random
import selectors
import socket
import threading


class CuttingProxy:
    """Stands between clients and one server; ``endpoint`` is where clients go.

    Each connection is cut after a random number of bytes (either way) drawn from
    ``bytes_before_cut``; ``cuts`` left says how many are still to come, after which it passes
    everything. ``freeze()`` keeps connections open and silent, ``thaw()`` ends that.
    """

    def __init__(
        self, target_port: int, *, cuts: int = 0, bytes_before_cut: tuple[int, int] = (1, 5000)
    ) -> None:
        self.cuts = cuts
        self._range = bytes_before_cut
        self._random = random.Random(7)
        self._target = ("127.0.0.1", target_port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._wake, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ, None)
        self._budget: dict[socket.socket, list[int]] = {}
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

    def close(self) -> None:
        self._stopping = True
        self._flowing.set()
        self._wake.send(b"x")
        self._thread.join(10)
        assert not self._thread.is_alive()

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
                elif key.data is not None:
                    self._pass_on(key.fileobj, key.data)  # type: ignore[arg-type]
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._wake.close()

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        try:
            server = socket.create_connection(self._target)
        except OSError:
            client.close()
            return
        budget = [self._random.randint(*self._range)]
        for one, other in ((client, server), (server, client)):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._budget[one] = budget
            self._selector.register(one, selectors.EVENT_READ, other)

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        if source not in self._budget:
            return  # cut earlier in this round of events
        budget = self._budget[source]
        try:
            data = source.recv(65536)
            if self.cuts > 0:
                data, whole = data[: budget[0]], len(data)
                budget[0] -= whole
            if data:
                sink.sendall(data)
        except OSError:
            data = b""
        if not data or (self.cuts > 0 and budget[0] <= 0):
            self.cuts -= 1 if data else 0
            for end in (source, sink):
                self._budget.pop(end, None)
                self._selector.unregister(end)
                end.close()
