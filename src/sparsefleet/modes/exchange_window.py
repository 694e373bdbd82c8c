"""When the next exchange with the servers is due."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from sparsefleet.errors import DeadlineError


class ExchangeWindows:
    """Fills one window while the one before is exchanged. Thread-safe; one thread exchanges.

    Invariant: no window grows beyond its interval. So training is at most one interval ahead of
    a running exchange.
    """

    def __init__(self, interval_steps: int, *, wait_s: float) -> None:
        self._interval = interval_steps
        self._wait_s = wait_s
        self._changed = threading.Condition()
        self._filling = 0  # mini-batches
        self._full = 0
        self._closed = False
        self._failure: BaseException | None = None

    def add(self) -> float:
        """One mini-batch more; blocks while both windows are full. Seconds blocked."""
        began = time.monotonic()
        with self._changed:
            self._wait(lambda: self._filling < self._interval)
            self._filling += 1
            self._turn_if_full()
        return time.monotonic() - began

    def next_full(self) -> int:
        """Waits for a full window; its mini-batches, 0 when closed or failed."""
        with self._changed:
            self._changed.wait_for(lambda: self._full or self._closed or self._failure)
            return 0 if self._failure else self._full

    def exchanged(self) -> None:
        """The window that ``next_full`` gave is done."""
        with self._changed:
            self._full = 0
            self._turn_if_full()
            self._changed.notify_all()

    def take_rest(self) -> int:
        """Waits for the running exchange; the mini-batches of the window that is not full, which
        is empty then."""
        with self._changed:
            self._wait(lambda: not self._full)
            rest, self._filling = self._filling, 0
            return rest

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Ends all waits, now and later, with ``error``."""
        with self._changed:
            if self._failure is None:
                self._failure = error
            self._changed.notify_all()

    @property
    def open_steps(self) -> int:
        """Mini-batches not yet exchanged."""
        return self._filling + self._full

    def _turn_if_full(self) -> None:
        if not self._full and self._filling >= self._interval:
            self._full, self._filling = self._filling, 0
            self._changed.notify_all()

    def _wait(self, condition: Callable[[], bool]) -> None:
        if not self._changed.wait_for(lambda: condition() or self._failure, self._wait_s):
            raise DeadlineError(
                f"an exchange of {self._full} mini-batches with the "
                f"servers was not over within {self._wait_s:g} s"
            )
        if self._failure is not None:
            raise self._failure
