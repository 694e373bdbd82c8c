"""Limits on the requests in progress and their memory; reading of request bodies."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import anyio
from starlette.requests import ClientDisconnect, Request

from sparsefleet.serving.http.config import ServeConfig
from sparsefleet.serving.http.refusal import Refusal

__all__ = ["Admission", "Place"]


class Admission:
    """Counts requests and the memory they need. Only the event loop's thread may call it.

    A request counts once its body is complete, so one that is sent slowly or never finished does
    not occupy a place. Until then only the bytes received so far count.
    """

    def __init__(self, config: ServeConfig) -> None:
        self.config = config
        self.receiving = 0
        self.requests = 0
        self.bytes = 0
        self.is_draining = False

    @contextlib.contextmanager
    def place(self) -> Iterator[Place]:
        """Admit one request; refuses with 429 if too many are in progress."""
        self.require_room()
        place = Place(self)
        try:
            yield place
        finally:
            place.free()

    def require_room(self) -> None:
        """Refuse with 429 if no further request can be admitted."""
        if self.requests >= self.config.max_requests:
            raise Refusal(
                429,
                "queue_full",
                f"{self.requests} requests are in progress, which is the limit: try again later",
                {"Retry-After": "1"},
            )


class Place:
    """One admitted request and the memory counted for it."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._is_counted = False
        self.bytes = 0

    async def read(self, request: Request) -> bytes:
        """Return the body, and count the request. Enforces the limits on size and time; a body
        whose Content-Length is too large is refused before any of it is read."""
        admission, config = self._admission, self._admission.config
        said = request.headers.get("content-length", "")
        self._check_body(int(said) if said.isascii() and said.isdigit() else 0)
        parts: list[bytes] = []
        got = 0
        admission.receiving += 1
        try:
            with anyio.fail_after(config.read_timeout_s):
                async for part in request.stream():
                    got += len(part)
                    self._check_body(got)
                    self._set(got)
                    parts.append(part)
        except TimeoutError:
            raise Refusal(
                408,
                "body_too_slow",
                f"the body was not received within {config.read_timeout_s:g} s",
                {"Connection": "close"},
            ) from None
        except ClientDisconnect:
            raise Refusal(400, "disconnected", "the client disconnected") from None
        finally:
            admission.receiving -= 1
        self.take()
        return b"".join(parts)

    def take(self) -> None:
        """Count the request, once; refuses with 429 if there are too many."""
        if not self._is_counted:
            self._admission.require_room()
            self._is_counted = True
            self._admission.requests += 1

    def hold(self, size: int) -> None:
        """Count `size` bytes of memory for the request from now on. Refuses with 413 if that can
        never fit, and with 429 if it does not fit now."""
        most = self._admission.config.max_bytes_under_way
        if size > most:
            raise Refusal(
                413,
                "too_large",
                f"the request needs about {size:,} bytes of memory, and the limit is {most:,}: "
                "send fewer examples at a time, or start the service with a higher "
                "--max-bytes-under-way",
            )
        if size > self.bytes:
            self._check_room(size)
        self._set(size)

    def shrink(self, size: int) -> None:
        """Count at most `size` bytes from now on."""
        self._set(min(size, self.bytes))

    def free(self) -> None:
        """Count the request no longer."""
        self._set(0)
        if self._is_counted:
            self._is_counted = False
            self._admission.requests -= 1

    def _set(self, size: int) -> None:
        self._admission.bytes += size - self.bytes
        self.bytes = size

    def _check_body(self, size: int) -> None:
        config = self._admission.config
        if size > config.max_request_bytes:
            raise Refusal(
                413,
                "too_large",
                f"the body has more than {config.max_request_bytes:,} bytes, which is the limit: "
                "send fewer examples at a time",
                {"Connection": "close"},
            )
        self._check_room(size, {"Connection": "close"})

    def _check_room(self, size: int, headers: dict[str, str] | None = None) -> None:
        admission, most = self._admission, self._admission.config.max_bytes_under_way
        if admission.bytes - self.bytes + size > most:
            raise Refusal(
                429,
                "queue_full",
                f"requests in progress need about {admission.bytes:,} bytes of memory, and the "
                f"limit is {most:,}: try again later",
                {"Retry-After": "1", **(headers or {})},
            )
