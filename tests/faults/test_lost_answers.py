"""A push that a server applied counts once, even if its answer is lost for good."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest
from tests.support.server_process import DEADLINE_S, ServerProcess

from sparsefleet import optim
from sparsefleet.store import Constant, RemoteStore, RemoteStoreConfig, TableSpec

DIM, ROWS = 256, 16_384
ANSWER_BYTES = 4 * DIM * ROWS  # 16 MiB; servers remember 64 MiB of answers
PUSHES = 5


class SwallowingProxy:
    """Forwards everything, but swallows the first large answer after `is_armed` is set.

    endpoint: where clients connect. swallowed: set when it starts to swallow an answer.
    """

    def __init__(self, target: str) -> None:
        host, port = target.rsplit(":", 1)
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.is_armed = threading.Event()
        self.swallowed = threading.Event()
        self._lock = threading.Lock()
        self._sockets = ExitStack()
        self._sockets.enter_context(self._listener)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._sockets.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
            except OSError:
                return
            for end in (client, server):
                self._sockets.enter_context(end)
            threading.Thread(target=self._pass, args=(client, server), daemon=True).start()
            threading.Thread(target=self._answer, args=(server, client), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        passed, swallows = 0, False
        try:
            while data := server.recv(1 << 16):
                if not self.is_armed.is_set():
                    passed = 0
                passed += len(data)
                with self._lock:
                    if passed > ANSWER_BYTES // 2 and not self.swallowed.is_set():
                        swallows = True
                        self.swallowed.set()
                if not swallows:
                    client.sendall(data)
        except OSError:
            return


@pytest.fixture
def proxy() -> Iterator[SwallowingProxy]:
    server = ServerProcess("--transport", "plain")
    made = SwallowingProxy(server.wait_ready())
    yield made
    made.close()
    server.kill()


@pytest.mark.job
def test_a_push_whose_answer_is_gone_is_neither_repeated_nor_reported_as_failed(
    proxy: SwallowingProxy, caplog: pytest.LogCaptureFixture
) -> None:
    keys = np.arange(ROWS)
    gradients = np.full((ROWS, DIM), -1.0, np.float32)
    spec = TableSpec(name="t", dim=DIM, optimizer=optim.SGD(lr=1.0), initializer=Constant(0.0))
    config = RemoteStoreConfig(timeout_s=DEADLINE_S, try_timeout_s=10.0)
    outcome: list[object] = []
    with RemoteStore([proxy.endpoint], transport="plain", config=config) as store:
        store.define(spec)

        def push() -> np.ndarray:
            rows = np.empty((ROWS, DIM), np.float32)
            store.push_many({"t": (keys, gradients)}, rows={"t": (keys, rows)})
            return rows

        def push_first() -> None:
            try:
                outcome.append(push())
            except Exception as error:
                outcome.append(error)

        proxy.is_armed.set()
        first = threading.Thread(target=push_first)
        first.start()
        assert proxy.swallowed.wait(DEADLINE_S)
        for _ in range(PUSHES):  # their answers displace the first one
            push()
        first.join(DEADLINE_S)
        [rows] = outcome
        assert isinstance(rows, np.ndarray), rows
        assert set(rows.ravel().tolist()) == {float(1 + PUSHES)}  # read when all were applied
        assert set(store.pull("t", keys, train=False).ravel().tolist()) == {float(1 + PUSHES)}
    assert "no longer remembered" in caplog.text
