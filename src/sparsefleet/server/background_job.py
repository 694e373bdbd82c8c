"""Server work that outlives the command that started it."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from sparsefleet.errors import DeadlineError

__all__ = ["BackgroundJob"]

# With a much higher value, a starved thread would hold a shard's lock for too long.
_NICENESS = 10


class BackgroundJob:
    """Runs ``work`` in its own thread and keeps the result. Thread-safe.

    The client that started the job must renew its lease by calling ``wait`` or ``renew`` at least
    every ``lease_s`` seconds. ``clean_up`` is called once, when ``end`` is called or the lease
    expires. With ``gives_way``, the thread runs at a lower priority than the server's requests.
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
        """Return whether ``end`` was called or the lease has expired, and cleanup is done."""
        return not self._thread.is_alive()

    def wait(self, timeout_s: float) -> dict[str, Any] | None:
        """Wait up to ``timeout_s``; return the result, or None if the work is still running.

        Raises the error that the work raised, if any.
        """
        with self._changed:
            self._asked = time.monotonic()
            self._changed.wait_for(lambda: self._is_done, timeout_s)
            self._asked = time.monotonic()
            if self._error is not None:
                raise self._error
            return self._result if self._is_done else None

    def renew(self) -> None:
        """Renew the lease."""
        with self._changed:
            self._asked = time.monotonic()

    def check(self) -> None:
        """Raise an error if the job was canceled or its lease expired. Must be called often."""
        with self._changed:
            if self._is_ended:
                raise DeadlineError(f"{self._name} was canceled")
            if self._left_s() <= 0:
                raise DeadlineError(
                    f"{self._name} was canceled: its client has not polled it for "
                    f"{self._lease_s:g} s"
                )

    def end(self, timeout_s: float) -> None:
        """Cancel the job and wait up to ``timeout_s`` for its thread."""
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
        except Exception as error:  # raised again by `wait`
            self._error = error
        with self._changed:
            self._is_done = True
            self._changed.notify_all()
            while not self._is_ended and (left_s := self._left_s()) > 0:
                self._changed.wait(left_s)
        self._clean_up()


def _lower_priority() -> None:
    """Lower the priority of this thread; only Linux has thread priorities."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
