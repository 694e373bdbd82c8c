"""Where the training threads of a worker stop for a save."""

from __future__ import annotations

import threading
from typing import Protocol

from sparsefleet.modes.thread_round import ThreadRound

__all__ = ["SaveGate", "SavePoints"]


class SavePoints(Protocol):
    """Says when, and does what is to be done once all threads have stopped."""

    def is_due(self, step: int) -> bool:
        """Whether a save is wanted when a thread has taken `step` steps in this pass.

        Called for each step of each thread; where threads step together once for all of them, one
        step ahead.
        """

    def save(self) -> None:
        """Called by one thread while the others wait."""


class SaveGate:
    """Every thread comes by before each step; when a save is due all stop here. Thread-safe.

    A thread that stops has nothing read ahead: what the data says of its position is then exactly
    what was trained on.

    steps_together: the threads take each step together, so none may stop while another waits for
        it in a step. They are told one step ahead and stop at the same one.
    """

    def __init__(
        self, threads: int, points: SavePoints, *, steps_together: bool, wait_s: float
    ) -> None:
        self._points = points
        self._together = steps_together
        self._round: ThreadRound[None] = ThreadRound(threads, self._save, wait_s=wait_s)
        self._lock = threading.Lock()
        self._is_due = False
        self._stop_at = -1  # the step at which all stop, where they step together
        self._saved_at = -1
        self._looked_at = -1

    def reach(self, step: int, *, has_ahead: bool) -> bool:
        """Between two steps of the calling thread; whether it may read ahead in the next one.

        step: the steps that the thread has finished in this pass.
        has_ahead: a batch was read for it that it has not trained on.
        """
        if self._together:
            return self._reach_together(step)
        with self._lock:
            self._is_due = self._is_due or self._points.is_due(step)
            if not self._is_due:
                return True
        if has_ahead:
            return False
        self._round.meet(None)
        return True

    def leave(self) -> None:
        """The calling thread has no more data; those that stopped do not wait for it."""
        self._round.leave()

    def fail(self, error: BaseException) -> None:
        """Wakes all who wait here with `error`."""
        self._round.fail(error)

    def _reach_together(self, step: int) -> bool:
        with self._lock:
            stops_here = step == self._stop_at and step > self._saved_at
        if stops_here:
            self._round.meet(None)
        with self._lock:
            if step > self._looked_at:  # the first of the threads decides for all
                self._looked_at = step
                if self._points.is_due(step + 1):
                    self._stop_at = step + 1
            return self._stop_at != step + 1

    def _save(self, _: object) -> None:
        try:
            self._points.save()
        finally:
            with self._lock:
                self._is_due = False
                self._saved_at = self._stop_at
