"""Peers that connect to a server and never prove the job key."""

from __future__ import annotations

import contextlib
import resource
import select
import socket
import threading
from collections.abc import Iterator

from sparsefleet.endpoint import parse_endpoint

__all__ = ["Strangers", "num_strangers"]

_SPARE_FILES = 512  # files reserved for everything else a test opens


def num_strangers(wanted: int) -> int:
    """Return `wanted`, or the number of files this process may open; raise its soft limit if
    possible.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + _SPARE_FILES
    if soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return min(wanted, soft - _SPARE_FILES)


class Strangers:
    """``with Strangers(endpoint, 1400): ...`` holds that many silent connections open.

    Each one that the server closes is replaced at once, from one of a few loopback addresses.
    """

    def __init__(self, endpoint: str, count: int) -> None:
        where = parse_endpoint(endpoint)
        self._to = (where.host, where.port)
        self._count = count
        self._open: dict[int, socket.socket] = {}
        self._poll = select.poll()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep_up, daemon=True)
        self.opened = 0
        """Connections made so far."""

    def _add(self) -> None:
        stranger = socket.socket()
        stranger.setblocking(False)
        with contextlib.suppress(OSError):  # systems that have no second loopback address
            stranger.bind((f"127.0.0.{1 + self.opened % 4}", 0))
        with contextlib.suppress(BlockingIOError):
            stranger.connect(self._to)
        self.opened += 1
        self._open[stranger.fileno()] = stranger
        self._poll.register(stranger, select.POLLIN)

    def _keep_up(self) -> None:
        while not self._stop.is_set():
            for descriptor, _ in self._poll.poll(20):
                self._poll.unregister(descriptor)
                self._open.pop(descriptor).close()
            while len(self._open) < self._count and not self._stop.is_set():
                self._add()

    def __enter__(self) -> Strangers:
        for _ in range(self._count):
            self._add()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        for stranger in self._sockets():
            stranger.close()

    def _sockets(self) -> Iterator[socket.socket]:
        yield from self._open.values()
