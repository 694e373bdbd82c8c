"""A bound on how far workers drift apart (stale synchronous parallel, Ho et al. 2013)."""

from __future__ import annotations

import time

from sparsefleet.errors import DeadlineError
from sparsefleet.modes.mode_setting import ModeSetting
from sparsefleet.modes.worker_group import WorkerGroup

_LOOK_UP_S = 1.0
"""A wait on the servers cannot be called off: it is made in pieces."""


class Pace:
    """Holds a worker back that is more than ``max_staleness`` mini-batches ahead of the slowest.

    The bound is shared out. Up to ``max_open`` mini-batches may be handed over and not yet
    applied: the training thread waits for those. What is applied may be ahead of the slowest
    worker's by the rest: the sender waits for that. So a worker that has done c mini-batches knows
    that c - max_staleness of every other one are applied. Not thread-safe.
    """

    def __init__(self, setting: ModeSetting, max_staleness: int, queue_size: int) -> None:
        self.max_open = min(queue_size, (max_staleness + 1) // 2)
        self._ahead = max_staleness - self.max_open
        self._store = setting.store
        self._wait_s = setting.wait_s
        self._group = WorkerGroup(setting)
        self._applied = 0
        self._given_up = False

    def join(self) -> None:
        """From here on the others wait for this worker."""
        self._group.join()

    def applied(self, count: int) -> None:
        """So many more are applied; returns when no worker is too far behind for the next."""
        self._applied += count
        began = time.monotonic()
        while not self._given_up:
            try:
                self._store.advance_clock(
                    self._group.member, self._applied, bound=self._ahead, timeout_s=_LOOK_UP_S
                )
                return
            except DeadlineError as error:
                if time.monotonic() - began >= self._wait_s:
                    raise DeadlineError(f"waited {self._wait_s:g} s in all: {error}") from error

    def give_up(self) -> None:
        """Ends a wait within a second; from any thread."""
        self._given_up = True

    def leave(self) -> None:
        """Nobody waits for this worker any longer in this pass. Idempotent."""
        self._group.leave()

    def next_pass(self) -> None:
        """All clocks start again at 0, when all workers are there."""
        self._applied = 0
        self._group.next_pass(0)

    def close(self) -> None:
        """Leaves for good. Idempotent."""
        self._group.close()
