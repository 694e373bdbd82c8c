"""Limit open connections, and choose which connection to close when a limit is reached."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import resource
from http import HTTPStatus
from typing import Any, Protocol

from uvicorn.protocols.http.h11_impl import H11Protocol

from sparsefleet.serving.http.refusal import Refusal

__all__ = ["Connection", "Connections", "guarded_protocol", "within_descriptors"]

_log = logging.getLogger(__name__)
_RESERVED_DESCRIPTORS = 128
"""File descriptors reserved for model files, row stores and connections not counted yet."""
_LEAST = 8
_IPV6_PREFIX = 64  # one customer usually gets at least a /64


class Connection(Protocol):
    """The interface of a connection that `Connections` uses."""

    @property
    def is_receiving(self) -> bool:
        """Return whether a request body is still being received."""

    def drop(self) -> None:
        """Close the connection immediately."""


class Connections:
    """Counts open connections, in total and per address.

    Beyond a limit, a new connection replaces the connection that has been idle longest. If none is
    idle, it replaces the oldest connection that is still sending its request. If every connection
    is being answered, the new connection is rejected.

    May only be used by the event loop's thread.
    """

    def __init__(self, max_total: int, max_per_address: int) -> None:
        self.max_total = max_total
        self.max_per_address = max_per_address
        self.dropped = 0
        self._origins: dict[Connection, str] = {}
        self._idle: dict[Connection, None] = {}  # in the order they became idle
        self._by_origin: dict[str, dict[Connection, None]] = {}

    def __len__(self) -> int:
        return len(self._origins)

    def open(self, connection: Connection, address: str | None) -> Refusal | None:
        """Register a new connection as idle. If it is rejected, return the response to send."""
        origin = origin_of(address)
        beside = self._by_origin.get(origin, {})
        if len(beside) >= self.max_per_address and not self._drop_one(beside):
            return Refusal(
                429,
                "too_many_connections",
                f"your address has {len(beside)} connections in use, and the limit is "
                f"{self.max_per_address}; use fewer, or start the service with a higher "
                "--max-connections-per-address",
                {"Retry-After": "1"},
            )
        if len(self._origins) >= self.max_total and not self._drop_one(self._origins):
            return Refusal(
                503,
                "too_many_connections",
                f"{len(self._origins)} connections are in use, which is the limit; try again "
                "later, or start the service with a higher --max-connections",
                {"Retry-After": "1"},
            )
        self._origins[connection] = origin
        self._by_origin.setdefault(origin, {})[connection] = None
        self._idle[connection] = None
        return None

    def set_idle(self, connection: Connection, is_idle: bool) -> None:
        """Record whether a request is in progress on the connection."""
        if not is_idle:
            self._idle.pop(connection, None)
        elif connection in self._origins and connection not in self._idle:
            self._idle[connection] = None

    def close(self, connection: Connection) -> None:
        """Remove a connection; do nothing if it was already removed."""
        origin = self._origins.pop(connection, None)
        if origin is None:
            return
        self._idle.pop(connection, None)
        beside = self._by_origin[origin]
        del beside[connection]
        if not beside:
            del self._by_origin[origin]

    def _drop_one(self, among: dict[Connection, None] | dict[Connection, str]) -> bool:
        """Close one connection to make room; return False if no connection can be closed."""
        candidates = self._idle if among is self._origins else (c for c in self._idle if c in among)
        found = next(iter(candidates), None)
        if found is None:
            found = next((connection for connection in among if connection.is_receiving), None)
        if found is None:
            return False
        self.close(found)
        self.dropped += 1
        found.drop()
        return True


def origin_of(address: str | None) -> str:
    """Return the unit that counts as one client address: an IPv4 address, or an IPv6 /64 network.

    >>> origin_of("::ffff:10.0.0.1"), origin_of("2001:db8::1:2:3:4")
    ('10.0.0.1', '2001:db8::/64')
    """
    try:
        found = ipaddress.ip_address((address or "").partition("%")[0])
    except ValueError:
        return address or ""
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, _IPV6_PREFIX), strict=False))


def within_descriptors(wanted: int) -> int:
    """Return how many of the `wanted` connections the process has descriptors for.

    Raises the soft limit on open files as far as needed and allowed. Some descriptors are reserved
    for files.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + _RESERVED_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < needed:
        raised = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
            soft = raised
        except (OSError, ValueError) as error:
            _log.warning("cannot raise the limit on open files above %d: %s", soft, error)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    room = max(_LEAST, soft - _RESERVED_DESCRIPTORS, soft // 2)
    _log.warning(
        "the limit on open files is %d, so at most %d connections are accepted instead of %d; "
        "raise the limit (ulimit -n)",
        soft,
        room,
        wanted,
    )
    return room


class _GuardedProtocol(H11Protocol):
    """Uvicorn's protocol with deadlines and with limits on the number of connections.

    The deadlines apply to receiving request headers and to sending responses.
    """

    head_timeout_s: float
    open_connections: Connections
    unread_timeout_s = 60.0
    """Time limit for a client to read a response, which occupies memory in the meantime."""
    _waiting: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        refusal = self.open_connections.open(self, self.client[0] if self.client else None)
        if refusal is None:
            self._wait_for_head()
        else:
            transport.write(_as_bytes(refusal))
            transport.close()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_idle:
            self._wait_for_head()
        else:
            self._wait_no_longer()
        self.open_connections.set_idle(self, self._is_idle)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.open_connections.set_idle(self, self._is_idle)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(self.unread_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._is_read()

    def connection_lost(self, exc: Exception | None) -> None:
        self.open_connections.close(self)
        self._wait_no_longer()
        self._is_read()
        super().connection_lost(exc)

    @property
    def is_receiving(self) -> bool:
        return not self._is_idle and self.cycle.more_body

    def drop(self) -> None:
        self.transport.abort()

    @property
    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _wait_for_head(self) -> None:
        if self._waiting is None:  # the deadline counts from the first byte, not from each byte
            self._waiting = self.loop.call_later(self.head_timeout_s, self.transport.close)

    def _wait_no_longer(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _is_read(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None


def _as_bytes(refusal: Refusal) -> bytes:
    """Return the refusal as a complete HTTP response, for a connection that has sent no request."""
    response = refusal.response()
    head = [f"HTTP/1.1 {refusal.status} {HTTPStatus(refusal.status).phrase}", "connection: close"]
    head += [f"{name}: {value}" for name, value in response.headers.items()]
    return "\r\n".join([*head, "", ""]).encode() + bytes(response.body)


def guarded_protocol(head_timeout_s: float, connections: Connections) -> Any:
    """Return the protocol class for uvicorn.

    head_timeout_s: a connection that has not sent all request headers within this time is closed.
    connections: counts the open connections.
    """
    settings = {"head_timeout_s": head_timeout_s, "open_connections": connections}
    return type("GuardedProtocol", (_GuardedProtocol,), settings)
