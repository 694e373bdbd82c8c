"""A barrier for the threads of one worker; the last thread to arrive does the work for all."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from sparsefleet.errors import ConfigError, DeadlineError

Item = TypeVar("Item")


class ThreadRound(Generic[Item]):
    """A barrier that gathers one item from each thread, and that threads may leave.

    Invariant: while a thread waits, either fewer threads have arrived than expected, or the work is
    running. A thread that leaves therefore does the work itself if no other thread was missing.
    Thread-safe.

    is_patient: whether the work may take any amount of time, such as an evaluation.
    """

    def __init__(
        self,
        threads: int,
        work: Callable[[Sequence[Item]], None],
        *,
        wait_s: float,
        is_patient: bool = False,
    ) -> None:
        self._threads = threads
        self._work = work
        self._wait_s = wait_s
        self._work_s = None if is_patient else 3 * wait_s
        self._changed = threading.Condition()
        self._expected = threads
        self._arrived: list[Item] = []
        self._working = False
        self._rounds = 0
        self._failure: BaseException | None = None

    def meet(self, item: Item) -> float:
        """Wait until all threads have arrived and their items are processed; return seconds waited.

        Raises the error from the work, or the error passed to ``fail``, in every thread of the
        round.
        """
        with self._changed:
            self._raise_failure()
            if not self._expected:
                raise ConfigError("all threads have left this pass; call rejoin() first")
            self._arrived.append(item)
            if len(self._arrived) < self._expected:
                return self._wait_for_work()
            items = self._begin_work()
        self._do_work(items)
        return 0.0

    def leave(self) -> int:
        """Expect one fewer thread from now on, and return how many are left."""
        with self._changed:
            if not self._expected:
                raise ConfigError(f"all {self._threads} threads have already left this pass")
            self._expected -= 1
            left = self._expected
            if not left or len(self._arrived) < left or self._working or self._failure:
                return left
            items = self._begin_work()
        self._do_work(items)
        return left

    def rejoin(self) -> None:
        """Expect all threads again."""
        with self._changed:
            self._raise_failure()
            self._expected = self._threads

    def set_threads(self, threads: int) -> None:
        """Set the number of threads; if all threads have left, it takes effect at ``rejoin``."""
        with self._changed:
            self._threads = threads
            self._expected = threads if self._expected else 0

    def fail(self, error: BaseException) -> None:
        """Make all threads that wait, now or later, raise ``error``."""
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
        # The others must arrive within wait_s; the work that follows has its own time limits.
        gathered = self._changed.wait_for(
            lambda: self._working or self._rounds > own_round or self._failure, self._wait_s
        )
        if not gathered:
            self._raise_late(f"{len(self._arrived)} of {self._expected} threads arrived")
        done = self._changed.wait_for(
            lambda: self._rounds > own_round or self._failure, self._work_s
        )
        if not done:
            self._raise_late("the push of their gradients did not finish")
        self._raise_failure()
        return time.monotonic() - began

    def _raise_late(self, found: str) -> None:
        error = DeadlineError(
            f"the threads of this worker did not synchronize within {self._wait_s:g} s: {found}; "
            "a thread without data must call leave()"
        )
        self._failure = self._failure or error
        self._changed.notify_all()
        raise error

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
