"""The proxy of the fault tests ends in order; it once failed the tests it served."""

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
    """Lies between the word to stop and the waking: gives the thread something else to see."""

    def __init__(self, proxy: CuttingProxy) -> None:
        super().__init__()
        self._proxy = proxy

    def set(self) -> None:
        super().set()
        host, port = self._proxy.endpoint.split(":")
        with socket.create_connection((host, int(port))):
            self._proxy._thread.join(10)
        assert not self._proxy._thread.is_alive()
