"""The threads of one worker meet, and the last to come works for all."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from sparsefleet.errors import ConfigError, DeadlineError

Item = TypeVar("Item")


class ThreadRound(Generic[Item]):
    """A barrier that gathers what threads bring and may lose threads. Thread-safe.

    Invariant: while a thread waits, fewer have arrived than are expected, or the work runs. So a
    thread that leaves does the work itself if all others were waiting for it alone.
    """

    def __init__(
        self, threads: int, work: Callable[[Sequence[Item]], None], *, wait_s: float
    ) -> None:
        self._threads = threads
        self._work = work
        self._wait_s = wait_s
        self._changed = threading.Condition()
        self._expected = threads
        self._arrived: list[Item] = []
        self._working = False
        self._rounds = 0
        self._failure: BaseException | None = None

    def meet(self, item: Item) -> float:
        """Waits until all threads came and the work on their items is done; seconds waited.

        Raises the error of the work in every thread of the round, or the one of ``fail``.
        """
        with self._changed:
            self._raise_failure()
            if not self._expected:
                raise ConfigError("all threads have left this pass: call rejoin() first")
            self._arrived.append(item)
            if len(self._arrived) < self._expected:
                return self._wait_for_work()
            items = self._begin_work()
        self._do_work(items)
        return 0.0

    def leave(self) -> int:
        """One thread fewer is expected from now on; returns how many are left."""
        with self._changed:
            if not self._expected:
                raise ConfigError(f"all {self._threads} threads have left this pass already")
            self._expected -= 1
            left = self._expected
            if not left or len(self._arrived) < left or self._working or self._failure:
                return left
            items = self._begin_work()
        self._do_work(items)
        return left

    def rejoin(self) -> None:
        """All threads are expected again."""
        with self._changed:
            self._raise_failure()
            self._expected = self._threads

    def set_threads(self, threads: int) -> None:
        """So many are expected from now on; if all have left, from ``rejoin`` on."""
        with self._changed:
            self._threads = threads
            self._expected = threads if self._expected else 0

    def fail(self, error: BaseException) -> None:
        """Wakes all who wait with ``error``; so ends every later meeting."""
        with self._changed:
            if self._failure is None:
                self._failure = error
            self._changed.notify_all()

    def _begin_work(self) -> list[Item]:
        items, self._arrived = self._arrived, []
        self._working = True
        self._changed.notify_all()
        return items

    def _do_work(self, items: Sequence[Item]) -> None:
        try:
            self._work(items)
        except BaseException as error:
            self.fail(error)
            raise
        finally:
            with self._changed:
                self._working = False
                self._rounds += 1
                self._changed.notify_all()

    def _wait_for_work(self) -> float:
        began = time.monotonic()
        own_round = self._rounds
        # Others first come within wait_s; then the work, whose waits have limits of their own.
        gathered = self._changed.wait_for(
            lambda: self._working or self._rounds > own_round or self._failure, self._wait_s
        )
        if not gathered:
            self._raise_late(f"{len(self._arrived)} of {self._expected} threads handed over")
        done = self._changed.wait_for(
            lambda: self._rounds > own_round or self._failure, 3 * self._wait_s
        )
        if not done:
            self._raise_late("the push of their gradients had not ended")
        self._raise_failure()
        return time.monotonic() - began

    def _raise_late(self, found: str) -> None:
        error = DeadlineError(
            f"the threads of this worker did not meet within {self._wait_s:g} s: {found}; "
            "a thread without data must leave()"
        )
        self._failure = self._failure or error
        self._changed.notify_all()
        raise error

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
