"""Ports that stay free from being chosen until a server listens on them."""

from __future__ import annotations

import errno
import socket
import sys
from types import TracebackType
from typing import TYPE_CHECKING

from sparsefleet.endpoint import parse_endpoint
from sparsefleet.errors import ConfigError

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["PortReservation"]

# On Linux, a socket that is bound but does not listen keeps everybody else away but a server that
# binds with SO_REUSEADDR, as ours do. Elsewhere it would keep the server away too: there a
# port is only looked at, and could be taken before the server has started.
_CAN_HOLD = sys.platform == "linux"


class PortReservation:
    """Holds ports of this machine while it is open."""

    def __init__(self) -> None:
        self._held: list[socket.socket] = []

    def take_free(self, count: int) -> list[int]:
        """Ports of 127.0.0.1 that nobody uses."""
        sockets = []
        for _ in range(count):
            one = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            self._held.append(one)
            one.bind(("127.0.0.1", 0))
            sockets.append(one)
        ports = [int(one.getsockname()[1]) for one in sockets]
        for one in sockets:
            self._hold(one)
        return ports

    def take(self, endpoint: str) -> None:
        """One endpoint. Raises ConfigError if somebody listens there.

        An address that cannot be bound for another reason is left to the server to complain of.
        """
        where = parse_endpoint(endpoint)
        family = socket.AF_INET6 if ":" in where.host else socket.AF_INET
        one = socket.socket(family, socket.SOCK_STREAM)
        self._held.append(one)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((where.host, where.port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise ConfigError(
                    f"port {where.port} of {where.host} is taken by another process, but one of "
                    "this job is to listen there: end that process, or choose another first port"
                ) from error
        self._hold(one)

    def _hold(self, one: socket.socket) -> None:
        if _CAN_HOLD:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        else:
            one.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for one in self._held:
            one.close()
