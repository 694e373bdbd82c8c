"""Work of a server that outlasts the command that began it."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from sparsefleet.errors import DeadlineError

__all__ = ["BackgroundJob"]

_NICENESS = 5  # a thread that hardly ever runs would hold a shard's lock for long


class BackgroundJob:
    """Runs ``work`` in a thread of its own and keeps what came of it. Thread-safe.

    Whoever began it must ask after it now and then: after ``lease_s`` without a question it counts
    as given up. ``clean_up`` is called once, when it is given up or ended. ``gives_way``: the
    requests that the server answers meanwhile come first.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[BackgroundJob], dict[str, Any]],
        *,
        lease_s: float,
        clean_up: Callable[[], None],
        gives_way: bool = False,
    ) -> None:
        self._name = name
        self._work = work
        self._clean_up = clean_up
        self._lease_s = lease_s
        self._gives_way = gives_way
        self._changed = threading.Condition()
        self._is_done = False
        self._is_ended = False
        self._result: dict[str, Any] = {}
        self._error: Exception | None = None
        self._asked = time.monotonic()
        self._thread = threading.Thread(target=self._run, name=f"sparsefleet-{name}", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Whether it was ended or given up, and has cleaned up."""
        return not self._thread.is_alive()

    def wait(self, timeout_s: float) -> dict[str, Any] | None:
        """What the work gave, or None if it takes longer than that; raises what it raised."""
        with self._changed:
            self._asked = time.monotonic()
            self._changed.wait_for(lambda: self._is_done, timeout_s)
            self._asked = time.monotonic()
            if self._error is not None:
                raise self._error
            return self._result if self._is_done else None

    def renew(self) -> None:
        """Somebody still wants what came of it."""
        with self._changed:
            self._asked = time.monotonic()

    def check(self) -> None:
        """For the work, now and then: raises when nobody wants it any more."""
        with self._changed:
            if self._is_ended:
                raise DeadlineError(f"{self._name} was called off")
            if self._left_s() <= 0:
                raise DeadlineError(
                    f"{self._name}: who began it has not asked after it for {self._lease_s:g} s; "
                    "it was given up"
                )

    def end(self, timeout_s: float) -> None:
        """Nobody wants it any more; waits for the thread, within ``timeout_s``."""
        with self._changed:
            self._is_ended = True
            self._changed.notify_all()
        self._thread.join(timeout_s)

    def _left_s(self) -> float:
        return self._asked + self._lease_s - time.monotonic()

    def _run(self) -> None:
        if self._gives_way:
            _lower_priority()
        try:
            self._result = self._work(self)
        except Exception as error:  # the thread's edge: raised where somebody asks
            self._error = error
        with self._changed:
            self._is_done = True
            self._changed.notify_all()
            while not self._is_ended and (left_s := self._left_s()) > 0:
                self._changed.wait(left_s)
        self._clean_up()


def _lower_priority() -> None:
    """Only Linux has priorities of threads; elsewhere the work runs like any other."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
