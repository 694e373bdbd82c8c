"""How much may be under way at once, and how a request's body is read within it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import anyio
from starlette.requests import ClientDisconnect, Request

from sparsefleet.serve.http.config import ServeConfig
from sparsefleet.serve.http.refusal import Refusal

__all__ = ["Admission", "Place"]


class Admission:
    """Counts requests and the bytes of their bodies. Belongs to the thread of the event loop."""

    def __init__(self, config: ServeConfig) -> None:
        self.config = config
        self.requests = 0
        self.bytes = 0
        self.is_draining = False

    @contextlib.contextmanager
    def place(self) -> Iterator[Place]:
        """A place for one request; refuses with 429 if there is none."""
        if self.requests >= self.config.max_requests:
            raise Refusal(
                429,
                "queue_full",
                f"{self.requests} requests are under way, which is the limit: try again later",
                {"Retry-After": "1"},
            )
        self.requests += 1
        place = Place(self)
        try:
            yield place
        finally:
            self.requests -= 1
            self.bytes -= place.bytes


class Place:
    """Of one request."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self.bytes = 0

    async def read(self, request: Request) -> bytes:
        """The body, within the limits of size and time. One that says it is too large is refused
        before any of it is read."""
        config = self._admission.config
        said = request.headers.get("content-length", "")
        size = int(said) if said.isascii() and said.isdigit() else 0
        self._take(size)
        parts: list[bytes] = []
        got = 0
        try:
            with anyio.fail_after(config.read_timeout_s):
                async for part in request.stream():
                    got += len(part)
                    self._take(got)
                    parts.append(part)
        except TimeoutError:
            raise Refusal(
                408,
                "body_too_slow",
                f"the request was not sent within {config.read_timeout_s:g} s",
                {"Connection": "close"},
            ) from None
        except ClientDisconnect:
            raise Refusal(400, "disconnected", "the sender has gone") from None
        return b"".join(parts)

    def _take(self, size: int) -> None:
        """Counts up to `size` bytes for this request."""
        config = self._admission.config
        if size > config.max_request_bytes:
            raise Refusal(
                413,
                "too_large",
                f"the body has more than {config.max_request_bytes:,} bytes, which is the limit: "
                "send fewer examples at a time",
                {"Connection": "close"},
            )
        more = max(0, size - self.bytes)
        if self._admission.bytes + more > config.max_bytes_under_way:
            raise Refusal(
                429,
                "queue_full",
                f"bodies of {self._admission.bytes:,} bytes are under way, and the limit is "
                f"{config.max_bytes_under_way:,}: try again later",
                {"Retry-After": "1", "Connection": "close"},
            )
        self._admission.bytes += more
        self.bytes += more
