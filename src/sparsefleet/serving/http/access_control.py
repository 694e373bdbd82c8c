"""Check every request's host, origin and token.

The owner of a web page can point the page's own domain name at this service (DNS rebinding). The
browser then treats the service as part of that site and lets the page's scripts read its answers.
The Host header of such requests still contains the attacker's domain name, so checking it stops
such pages.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hmac
import socket
import time
from collections.abc import Iterable

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sparsefleet.endpoint import Endpoint, host_of, is_local_name
from sparsefleet.serving.http.admission import Admission
from sparsefleet.serving.http.refusal import Refusal
from sparsefleet.serving.http.service import Telemetry

__all__ = ["AUTHORIZED", "AccessControl", "Hosts"]

AUTHORIZED = "sparsefleet.authorized"
"""The scope key that holds whether the request is authorized."""

_LINGER_S = 2.0
_LIVENESS, _READINESS = "/healthz", "/readyz"
_PAGES = ("/", "/docs", "/openapi.json")
_PAGE_FILES = "/static/"
_BASIC = 'Basic realm="the token is the password", charset="UTF-8"'
_BROWSER_SAYS_SAME = (b"same-origin", b"same-site", b"none")
_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        b"img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    ),
]


class AccessControl:
    """ASGI middleware that rejects requests before they reach the app.

    With a token, every path requires it except /healthz, which reveals nothing, and /readyz if the
    settings allow it. Pages also accept the token as the password of HTTP Basic, so that a browser
    can ask for it. The API does not, because browsers also attach such passwords to requests made
    by other sites.
    """

    def __init__(self, app: ASGIApp, admission: Admission, telemetry: Telemetry) -> None:
        self._app = app
        config = admission.config
        self._token = None if config.token is None else config.token.encode()
        self._open = {_LIVENESS, _READINESS} if config.open_readyz else {_LIVENESS}
        self._hosts = Hosts(config.host, config.allowed_hosts)
        self._admission = admission
        self._telemetry = telemetry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin = time.monotonic()
        answer = _Answer(receive, send, self._admission)
        try:
            refusal = self._why_not(scope)
            app = self._app if refusal is None else refusal.response()
            await app(scope, answer.receive, answer.send)
        finally:
            route = scope.get("route")
            path = getattr(
                route, "path", "other"
            )  # the route rather than the path, to keep the number of labels small
            self._telemetry.answered(path, answer.status, time.monotonic() - begin)

    def _why_not(self, scope: Scope) -> Refusal | None:
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        if host and not self._hosts.allow(host):
            return Refusal(
                421,
                "unknown_host",
                f"the Host header {host!r:.80} is not allowed; use the service's IP address, or "
                "start it with --allowed-hosts NAME",
            )
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        is_page = path in _PAGES or path.startswith(_PAGE_FILES)
        scope[AUTHORIZED] = self._is_authorized(headers.get(b"authorization", b""), is_page)
        if path in self._open:
            return None
        if not is_page and self._is_cross_site(headers, host):
            return Refusal(
                403, "cross_site", "pages from other sites may not send requests to this service"
            )
        return None if scope[AUTHORIZED] else _unauthorized(is_page)

    def _is_cross_site(self, headers: dict[bytes, bytes], host: str) -> bool:
        """Return whether a browser sent this request on behalf of another site's page.

        Browsers send Sec-Fetch-Site only to https and loopback hosts; for other hosts, the Origin
        header is checked.
        """
        site = headers.get(b"sec-fetch-site")
        if site is not None:
            return site not in _BROWSER_SAYS_SAME
        origin = headers.get(b"origin")
        return origin is not None and not self._hosts.allow_origin(origin.decode("latin-1"), host)

    def _is_authorized(self, given: bytes, is_page: bool) -> bool:
        if self._token is None:
            return True
        scheme, _, value = given.partition(b" ")
        if scheme.lower() == b"bearer":
            return hmac.compare_digest(value.strip(), self._token)
        if is_page and scheme.lower() == b"basic":
            try:
                _, _, password = base64.b64decode(value.strip(), validate=True).partition(b":")
            except binascii.Error:
                return False
            return hmac.compare_digest(password, self._token)
        return False


def _unauthorized(is_page: bool) -> Refusal:
    return Refusal(
        401,
        "unauthorized",
        "the header 'Authorization: Bearer TOKEN' with the service's token is required",
        {"WWW-Authenticate": _BASIC if is_page else "Bearer"},
    )


class _Answer:
    """Forwards the messages of a response to the client and records its status.

    If the connection were closed while the client is still sending, the client would lose the
    response. Therefore the rest of the body is first read and discarded, for a limited time.
    """

    def __init__(self, receive: Receive, send: Send, admission: Admission) -> None:
        self._receive = receive
        self._send = send
        self._admission = admission
        self._body_left = True
        self._closes = False
        self.status = 500

    async def receive(self) -> Message:
        message = await self._receive()
        self._body_left = bool(message.get("more_body", False))
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = list(message.get("headers", []))
            self._closes = (b"connection", b"close") in headers
            if self._admission.is_draining and not self._closes:
                headers.append((b"connection", b"close"))  # so that the client reconnects elsewhere
            message = {**message, "headers": headers + _HEADERS}
        elif self._closes and self._body_left and not message.get("more_body", False):
            await self._send({**message, "more_body": True})
            with anyio.move_on_after(_LINGER_S):
                while self._body_left:
                    await self.receive()
            message = {"type": "http.response.body", "body": b""}
        await self._send(message)


_REMEMBERED = 256


class Hosts:
    """Checks Host and Origin headers.

    IP addresses and localhost are always allowed, since DNS cannot redirect them. Also allowed are
    the host that the service is bound to, the name of this machine if the service listens on more
    than loopback, and `names`: a name, `.example.com` for a domain and its subdomains, or `*` for
    any host.

    >>> hosts = Hosts("127.0.0.1", [".example.com"])
    >>> [hosts.allow(name) for name in ("localhost:80", "[::1]", "a.example.com", "evil.test")]
    [True, True, True, False]
    """

    def __init__(self, bound: str, names: Iterable[str] = ()) -> None:
        own = {bound}
        if not Endpoint(bound, 0).is_loopback:
            own.add(socket.gethostname())
        given = {name.lower().rstrip(".") for name in names}
        self._any = "*" in given
        self._names = {name.lower() for name in own if name} | given
        self._suffixes = tuple(name for name in given if name.startswith("."))
        self._names |= {suffix[1:] for suffix in self._suffixes}
        self.allow = functools.lru_cache(_REMEMBERED)(self._allow)

    def _allow(self, authority: str) -> bool:
        """Return whether this Host header, a name or address with an optional port, is allowed."""
        if self._any:
            return True
        host = host_of(authority)
        return host is not None and (is_local_name(authority) or self._is_named(host))

    def allow_origin(self, origin: str, asked: str) -> bool:
        """Return whether a page from `origin` may send requests whose Host header is `asked`."""
        scheme, mark, authority = origin.partition("://")
        if scheme not in ("http", "https") or not mark:
            return False
        host = host_of(authority)
        return authority.lower() == asked.lower() or (host is not None and self._is_named(host))

    def _is_named(self, host: str) -> bool:
        return host in self._names or host.endswith(self._suffixes)
