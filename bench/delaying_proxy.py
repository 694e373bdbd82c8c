"""Proxies in front of servers, in a separate process, that delay all traffic.

    python bench/delaying_proxy.py HOST:PORT...

Prints `ready` and one endpoint per server. An input line with a number of seconds sets the delay,
each way, of bytes that arrive from then on, and is answered with `delayed`. The delay does not
reduce the bandwidth. Ends at the end of its input.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import sys
import threading
import time

CHUNK_BYTES = 1 << 18


class Delay:
    """The delay shared by all connections."""

    seconds = 0.0


def pass_on(source: socket.socket, sink: socket.socket, delay: Delay) -> None:
    """Pass on all data in order, each piece after its delay; then the end."""
    pieces: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()

    def send() -> None:
        with contextlib.suppress(OSError):
            while True:
                due, piece = pieces.get()
                if (wait_s := due - time.monotonic()) > 0:
                    time.sleep(wait_s)
                if not piece:
                    sink.shutdown(socket.SHUT_WR)
                    return
                sink.sendall(piece)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    piece = b"-"
    while piece:
        try:
            piece = source.recv(CHUNK_BYTES)
        except OSError:
            piece = b""
        pieces.put((time.monotonic() + delay.seconds, piece))
    sender.join()


def connect(client: socket.socket, target: tuple[str, int], delay: Delay) -> None:
    """Pass bytes both ways until both directions have ended."""
    with client, socket.create_connection(target) as server:
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        back = threading.Thread(target=pass_on, args=(server, client, delay), daemon=True)
        back.start()
        pass_on(client, server, delay)
        back.join()


def serve(listener: socket.socket, target: tuple[str, int], delay: Delay) -> None:
    """Accept connections until the listener is shut down."""
    with contextlib.suppress(OSError):
        while True:
            client, _ = listener.accept()
            threading.Thread(target=connect, args=(client, target, delay), daemon=True).start()


def main() -> None:
    delay, endpoints = Delay(), []
    for word in sys.argv[1:]:
        host, _, port = word.rpartition(":")
        listener = socket.create_server(("127.0.0.1", 0))
        endpoints.append(f"127.0.0.1:{listener.getsockname()[1]}")
        arguments = (listener, (host, int(port)), delay)
        threading.Thread(target=serve, args=arguments, daemon=True).start()
    print("ready", *endpoints, flush=True)
    for line in sys.stdin:
        delay.seconds = float(line)
        print("delayed", flush=True)


if __name__ == "__main__":
    main()
