"""What every request passes: the token, the count, and an end that lets the sender read."""

from __future__ import annotations

import hmac
import time

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sparsefleet.serve.http.admission import Admission
from sparsefleet.serve.http.refusal import Refusal
from sparsefleet.serve.http.telemetry import Telemetry

__all__ = ["Gate"]

_LINGER_S = 2.0
_GUARDED = ("/v1/", "/metrics")
_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        b"img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    ),
]


class Gate:
    """ASGI around the app."""

    def __init__(self, app: ASGIApp, admission: Admission, telemetry: Telemetry) -> None:
        self._app = app
        token = admission.config.token
        self._token = None if token is None else token.encode()
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
            path = getattr(route, "path", "other")  # not what was sent: labels must be few
            self._telemetry.answered(path, answer.status, time.monotonic() - begin)

    def _why_not(self, scope: Scope) -> Refusal | None:
        if not scope["path"].startswith(_GUARDED):
            return None
        headers = dict(scope["headers"])
        # A page of somebody else, in a browser that can reach this service.
        if headers.get(b"sec-fetch-site") == b"cross-site":
            return Refusal(403, "cross_site", "another site's page may not ask this service")
        if self._token is None:
            return None
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() == b"bearer" and hmac.compare_digest(token.strip(), self._token):
            return None
        return Refusal(
            401,
            "unauthorized",
            "this needs the header 'Authorization: Bearer TOKEN' with the service's token",
            {"WWW-Authenticate": "Bearer"},
        )


class _Answer:
    """Passes messages on; notes the status.

    An answer that closes the connection while its sender still sends would be lost with what it
    sends: the rest is read and forgotten for a while first.
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
                headers.append((b"connection", b"close"))  # its sender shall go elsewhere
            message = {**message, "headers": headers + _HEADERS}
        elif self._closes and self._body_left and not message.get("more_body", False):
            await self._send({**message, "more_body": True})
            with anyio.move_on_after(_LINGER_S):
                while self._body_left:
                    await self.receive()
            message = {"type": "http.response.body", "body": b""}
        await self._send(message)
