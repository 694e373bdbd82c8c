"""A bound on how far workers drift apart (stale synchronous parallel, Ho et al. 2013)."""

from __future__ import annotations

from sparsefleet.modes.mode_setting import ModeSetting
from sparsefleet.store import RoundMember


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
        self._setting = setting
        self._pass = 0
        self._applied = 0
        self._present = True

    def applied(self, count: int) -> None:
        """So many more are applied; returns when no worker is too far behind for the next."""
        self._applied += count
        self._setting.store.advance_clock(
            self._member(), self._applied, bound=self._ahead, timeout_s=self._setting.wait_s
        )

    def leave(self) -> None:
        """Nobody waits for this worker any longer in this pass. Idempotent."""
        if self._present:
            self._present = False
            self._setting.store.leave_group(self._member())

    def next_pass(self) -> None:
        """All clocks start again, so that nobody waits for those who left the last pass."""
        self.leave()
        self._pass += 1
        self._applied = 0
        self._present = True

    def _member(self) -> RoundMember:
        return RoundMember(
            group=f"{self._setting.group}/pace-{self._pass}",
            rank=self._setting.worker_index,
            size=self._setting.worker_num,
            go_on_without_lost=self._setting.go_on_without_lost,
        )
