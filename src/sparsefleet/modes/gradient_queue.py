"""Mini-batches' gradients on their way from training threads to the one that sends them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from sparsefleet.errors import DeadlineError
from sparsefleet.modes.mode_setting import StepGradients


class GradientQueue:
    """First in, first out, of bounded length. Thread-safe; one thread takes.

    A copy is *open* from ``put`` until the taker says ``applied``.
    """

    def __init__(self, capacity: int, *, wait_s: float) -> None:
        self._capacity = capacity
        self._wait_s = wait_s
        self._changed = threading.Condition()
        self._waiting: deque[StepGradients] = deque()
        self._open = 0
        self._hurry = 0
        self._closed = False
        self._failure: BaseException | None = None

    def put(self, gradients: StepGradients, *, max_open: int | None = None) -> float:
        """Adds a copy; blocks while the queue is full. Returns the seconds blocked.

        With ``max_open`` also blocks, once the copy is in, until no more than so many are open.
        """
        began = time.monotonic()
        with self._changed:
            self._wait_until(lambda: len(self._waiting) < self._capacity, "room in the queue")
            self._waiting.append(gradients)
            self._open += 1
            self._changed.notify_all()
            if max_open is not None:
                self._wait_until(
                    lambda: self._open <= max_open, "slower workers, as max_staleness asks"
                )
        return time.monotonic() - began

    def take(self, at_most: int, linger_s: float) -> list[StepGradients]:
        """The next copies, at least one; empty when the queue is closed and has none.

        Lingers up to ``linger_s`` after each copy for another one, unless somebody waits for
        the queue to be emptied.
        """
        taken: list[StepGradients] = []
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed or self._failure)
            while self._failure is None and len(taken) < at_most:
                if self._waiting:
                    taken.append(self._waiting.popleft())
                    self._changed.notify_all()
                elif not self._linger(linger_s):
                    break
        return taken if self._failure is None else []

    def applied(self, count: int) -> None:
        """So many copies taken are applied."""
        with self._changed:
            self._open -= count
            self._changed.notify_all()

    def wait_empty(self) -> None:
        """Returns when every copy put in is applied."""
        with self._changed:
            self._hurry += 1
            self._changed.notify_all()
            try:
                self._wait_until(lambda: not self._open, "the push of what was handed over")
            finally:
                self._hurry -= 1

    def close(self) -> None:
        """Tells the taker to end when the queue is empty."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Ends all waits, now and later, with ``error``; what is inside is not sent."""
        with self._changed:
            if self._failure is None:
                self._failure = error
            self._changed.notify_all()

    @property
    def open_copies(self) -> int:
        """Copies put in and not yet applied."""
        return self._open

    def raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _wait_until(self, condition: Callable[[], bool], what: str) -> None:
        if not self._changed.wait_for(lambda: condition() or self._failure, self._wait_s):
            raise DeadlineError(
                f"{self._open} mini-batches not yet applied: waited {self._wait_s:g} s for {what}"
            )
        self.raise_failure()

    def _linger(self, linger_s: float) -> bool:
        """Whether there may be another copy: waits a little, unless somebody is in a hurry."""
        if linger_s <= 0 or self._hurry or self._closed:
            return False
        return bool(
            self._changed.wait_for(
                lambda: self._waiting or self._hurry or self._closed or self._failure, linger_s
            )
        )
