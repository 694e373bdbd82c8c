"""The proxy of the fault tests shuts down cleanly; it used to fail the tests that use it."""

from __future__ import annotations

import socket
import threading

from tests.faults.cutting_proxy import CuttingProxy


def test_a_thread_that_stops_before_it_is_woken_does_not_fail_the_close() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        proxy = CuttingProxy(server.getsockname()[1])
        proxy._flowing = _EndsThreadFirst(proxy)
        proxy.close()


class _EndsThreadFirst(threading.Event):
    """Runs between the stop request and the wake-up: gives the thread another event."""

    def __init__(self, proxy: CuttingProxy) -> None:
        super().__init__()
        self._proxy = proxy

    def set(self) -> None:
        super().set()
        host, port = self._proxy.endpoint.split(":")
        with socket.create_connection((host, int(port))):
            self._proxy._thread.join(10)
        assert not self._proxy._thread.is_alive()
