"""HTTP connections that do not wait for ever: for a request's head, or for its sender to read."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["guarded_protocol"]


class _GuardedProtocol(H11Protocol):
    """uvicorn's, which alone would hold a connection open that sends half a head, or nothing."""

    head_timeout_s: float
    unread_timeout_s = 60.0
    """For an answer that its receiver is slow to read; until then it takes up memory."""
    _waiting: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._wait_for_head()
        else:
            self._wait_no_longer()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(self.unread_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._is_read()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_no_longer()
        self._is_read()
        super().connection_lost(exc)

    def _wait_for_head(self) -> None:
        if self._waiting is None:  # time runs from the first byte, not from each
            self._waiting = self.loop.call_later(self.head_timeout_s, self.transport.close)

    def _wait_no_longer(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _is_read(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None


def guarded_protocol(head_timeout_s: float) -> Any:
    """The class of connections that are closed if a head takes longer than that to come."""
    return type("GuardedProtocol", (_GuardedProtocol,), {"head_timeout_s": head_timeout_s})
