"""A small HTTP server for metrics and the dashboard: local, bounded, no dependencies."""

from __future__ import annotations

import contextlib
import hmac
import logging
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from sparsefleet.endpoint import Endpoint, is_local_name, parse_endpoint
from sparsefleet.errors import ConfigError

__all__ = ["HttpServer", "Request", "Response", "Route"]

_log = logging.getLogger("sparsefleet.monitor")
_MAX_CONNECTIONS = 64
_IDLE_S = 10.0
_TAKE_ROOM_S = 5.0
_COOKIE = "sparsefleet_token"
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class Request:
    """A GET request."""

    path: str
    query: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Response:
    """The response of a route: a complete body, or a stream."""

    body: bytes | Iterable[bytes] = b""
    content_type: str = "text/plain; charset=utf-8"
    status: int = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=dict)


Route = Callable[[Request], Response]


class HttpServer:
    """Serves GET requests from daemon threads until closed.

    address: "HOST:PORT"; port 0 picks a free port.
    routes: handlers by path.
    token: if set, requests must carry this token: as a bearer token, as `?token=`, which a browser
        exchanges for a cookie, or as that cookie.

    On a loopback address without a token, requests for any other host name are refused, since a web
    page whose domain name points to this address could read the responses. Beyond 64 connections,
    the oldest connection without a complete request is closed.
    """

    def __init__(self, address: str, routes: Mapping[str, Route], *, token: str = "") -> None:
        where = parse_endpoint(address)
        settings = {"routes": routes, "token": token, "is_local": where.is_loopback and not token}
        handler = type("_Handler", (_Handler,), settings)
        try:
            self._server = _Server((where.host, where.port), handler)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {address} for monitoring: {error.strerror or error}; choose a "
                "different address, or port 0 for a free port"
            ) from error
        self.endpoint = Endpoint(where.host, int(self._server.server_address[1]))
        """The address that the server listens on."""
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            kwargs={"poll_interval": 0.2},
            name="sparsefleet-http",
            daemon=True,
        )
        self._thread.start()

    def close(self) -> None:
        """Stop accepting connections and close the socket. Running responses stop with the
        process."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], handler: Any) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._room = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        self._lock = threading.Lock()
        self._silent: dict[Any, None] = {}  # connections without a complete request, oldest first
        super().__init__(address, handler)

    def server_bind(self) -> None:  # skips HTTPServer's lookup of the host name
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False) and not self._take_room():
            self.shutdown_request(request)
            return
        with self._lock:
            self._silent[request] = None
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.has_asked(request)
            self._room.release()

    def has_asked(self, request: Any) -> None:
        """Record that a connection has sent a complete request."""
        with self._lock:
            self._silent.pop(request, None)

    def _take_room(self) -> bool:
        """Close the oldest connection without a request, and wait for its slot."""
        with self._lock:
            oldest = next(iter(self._silent), None)
            if oldest is None:
                return False
            del self._silent[oldest]
            with contextlib.suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)  # its thread sees end of file and finishes
        return self._room.acquire(timeout=_TAKE_ROOM_S)

    def handle_error(self, request: Any, client_address: Any) -> None:
        del request
        _log.debug("a connection from %s failed", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    routes: Mapping[str, Route] = {}
    token = ""
    is_local = False
    server: _Server
    timeout = _IDLE_S
    server_version = "sparsefleet"
    sys_version = ""

    def do_GET(self) -> None:
        self.server.has_asked(self.connection)
        if self.is_local and not is_local_name(self.headers.get("Host", "localhost")):
            self._send(_OTHER_HOST)
            return
        parts = urlsplit(self.path)
        query = {name: texts[-1] for name, texts in parse_qs(parts.query).items()}
        if self.token and not self._knows_token():
            if not hmac.compare_digest(query.get("token", "").encode(), self.token.encode()):
                self._send(_NO_TOKEN)
                return
            if "text/html" in self.headers.get("Accept", ""):
                cookie = f"{_COOKIE}={self.token}; HttpOnly; SameSite=Strict; Path=/"
                headers = {"Location": parts.path or "/", "Set-Cookie": cookie}
                self._send(Response(status=HTTPStatus.SEE_OTHER, headers=headers))
                return
        route = self.routes.get(parts.path)
        if route is None:
            self._send(Response(b"not found\n", status=HTTPStatus.NOT_FOUND))
            return
        self._send(route(Request(parts.path, query)))

    def _knows_token(self) -> bool:
        given = self.headers.get("Authorization", "").removeprefix("Bearer ")
        try:
            cookie = SimpleCookie(self.headers.get("Cookie", "")).get(_COOKIE)
        except CookieError:
            cookie = None
        shown = [given.encode(), b"" if cookie is None else cookie.value.encode()]
        return any(hmac.compare_digest(text, self.token.encode()) for text in shown)

    def _send(self, response: Response) -> None:
        self.send_response(response.status)
        self.send_header("Content-Type", response.content_type)
        for name, text in {**_HEADERS, **response.headers}.items():
            self.send_header(name, text)
        if isinstance(response.body, bytes):
            self.send_header("Content-Length", str(len(response.body)))
            self.end_headers()
            self.wfile.write(response.body)
            return
        self.end_headers()
        with contextlib.suppress(OSError):  # the client disconnected
            for piece in response.body:
                self.wfile.write(piece)
                self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (the base class's name)
        _log.debug(format, *args)


_OTHER_HOST = Response(
    b"This address serves only this machine: use localhost or its IP address.\n",
    status=HTTPStatus.MISDIRECTED_REQUEST,
)
_NO_TOKEN = Response(
    b"This address needs the token that was printed with it: open the whole printed address.\n",
    status=HTTPStatus.FORBIDDEN,
)
