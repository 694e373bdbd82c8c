"""A connection between the launchers of two nodes, for short messages authenticated by the job key.

Messages are text lines over TCP. Each side first sends a random number; every later line carries an
HMAC-SHA256, keyed by the job key, over both numbers, the sender's role, the line number and the
text. No one without the key can join, or alter, repeat or reorder lines. The text is not secret.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import secrets
import socket
import threading
import time

from sparsefleet.errors import AuthError, PeerLostError, ProtocolError

__all__ = ["Wire"]

_MAX_LINE_BYTES = 4096
_GREETING = "sparsefleet-launch-1"


class Wire:
    """A connection to another launcher. The constructor exchanges greetings within `timeout_s`.

    Only one thread may receive; any thread may call `send`.
    """

    def __init__(
        self, connection: socket.socket, key: bytes, *, is_hub: bool, timeout_s: float
    ) -> None:
        self._socket = connection
        self._key = key
        self._side, self._other_side = ("hub", "leaf") if is_hub else ("leaf", "hub")
        self._sent = 0
        self._received = 0
        self._buffer = b""
        self._lock = threading.Lock()
        own = secrets.token_hex(16)
        connection.settimeout(timeout_s)
        connection.sendall(f"{_GREETING} {own}\n".encode())
        greeting, _, other = self._read_line(time.monotonic() + timeout_s).partition(" ")
        if greeting != _GREETING or len(other) != len(own):
            raise ProtocolError("the other side is not a sparsefleet launcher of this version")
        self._session = f"{own} {other}" if is_hub else f"{other} {own}"

    def send(self, text: str) -> None:
        """Send one message. Raises PeerLostError if the connection is gone."""
        with self._lock:
            line = f"{self._mac(self._side, self._sent, text)} {text}\n".encode()
            self._sent += 1
            try:
                self._socket.sendall(line)
            except OSError as error:
                raise PeerLostError(f"connection between launchers lost: {error}") from error

    def receive(self, timeout_s: float) -> str:
        """Return the next message. Raises TimeoutError, AuthError, or PeerLostError once closed."""
        mac, _, text = self._read_line(time.monotonic() + timeout_s).partition(" ")
        wanted = self._mac(self._other_side, self._received, text)
        if not hmac.compare_digest(mac.encode(), wanted.encode()):
            raise AuthError("the other launcher has a different job key")
        self._received += 1
        return text

    def end_sending(self) -> None:
        """Stop sending; the peer still receives everything already sent."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def _mac(self, side: str, number: int, text: str) -> str:
        message = f"{self._session} {side} {number} {text}".encode()
        return hmac.new(self._key, message, hashlib.sha256).hexdigest()

    def _read_line(self, deadline: float) -> str:
        while b"\n" not in self._buffer:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise TimeoutError
            if len(self._buffer) > _MAX_LINE_BYTES:
                raise ProtocolError(
                    f"a message from another launcher has more than {_MAX_LINE_BYTES:,} bytes"
                )
            self._socket.settimeout(remaining)
            try:
                chunk = self._socket.recv(_MAX_LINE_BYTES)
            except TimeoutError:
                raise
            except OSError as error:
                raise PeerLostError(f"connection between launchers lost: {error}") from error
            if not chunk:
                raise PeerLostError("the other launcher closed the connection")
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode("utf-8", "replace")
