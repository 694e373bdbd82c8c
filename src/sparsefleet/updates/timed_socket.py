"""Sockets to Redis on which an answer has one deadline, however many pieces it comes in."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

__all__ = ["TimedSocket", "with_timed_socket"]


class TimedSocket:
    """A socket whose time-out runs from what was sent last to the end of its answer.

    The one of a plain socket begins anew with each piece: of a server that sends a byte now and
    then it never runs out.
    """

    def __init__(self, sock: Any, timeout_s: float) -> None:
        self._sock = sock
        self._timeout_s = timeout_s
        self._end = time.monotonic() + timeout_s

    def sendall(self, data: Any) -> None:
        self._end = time.monotonic() + self._timeout_s
        self._sock.sendall(data)

    def recv(self, *arguments: Any) -> Any:
        return self._within_deadline(self._sock.recv, arguments)

    def recv_into(self, *arguments: Any) -> Any:
        return self._within_deadline(self._sock.recv_into, arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def _within_deadline(self, receive: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        allowed = self._sock.gettimeout()
        if not allowed:  # a look whether there is something
            return receive(*arguments)
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError("the answer has not ended in time")
        self._sock.settimeout(min(allowed, left))
        try:
            return receive(*arguments)
        finally:
            self._sock.settimeout(allowed)


def with_timed_socket(connection: Any) -> Any:
    """A class of connections of the Redis client, as another one but for its sockets."""

    def connect(self: Any) -> Any:
        return TimedSocket(connection._connect(self), self.socket_timeout)

    return type(connection.__name__, (connection,), {"_connect": connect})
