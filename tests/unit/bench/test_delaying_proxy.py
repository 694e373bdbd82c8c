from __future__ import annotations

import socket
import threading

from tests.unit.bench import bench_path  # noqa: F401

from delaying_proxy import Delay, serve

WAIT_S = 30.0


def test_bytes_come_in_order_and_so_does_the_end() -> None:
    delay = Delay()
    sent = b"".join(number.to_bytes(4, "big") for number in range(50_000))
    with socket.create_server(("127.0.0.1", 0)) as server:
        listener = socket.create_server(("127.0.0.1", 0))
        arguments = (listener, server.getsockname(), delay)
        serving = threading.Thread(target=serve, args=arguments)
        serving.start()
        with socket.create_connection(listener.getsockname(), WAIT_S) as client:
            inner, _ = server.accept()
            with inner:
                inner.settimeout(WAIT_S)
                delay.seconds = 0.02
                client.sendall(sent[:100_000])
                delay.seconds = 0.0  # what comes later must not overtake
                client.sendall(sent[100_000:])
                client.shutdown(socket.SHUT_WR)
                assert read_to_end(inner) == sent
                inner.sendall(b"answer")
            assert read_to_end(client) == b"answer"
        listener.shutdown(socket.SHUT_RDWR)
        serving.join(WAIT_S)
        listener.close()


def read_to_end(connection: socket.socket) -> bytes:
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)
