"""What a mode counts of itself."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True, slots=True)
class ModeStats:
    """Counters of one worker since the mode was made; seconds are summed over its threads.

    >>> ModeStats(pushes=2, merged_gradients=8).merge_factor
    4.0
    """

    steps: int = 0
    """Mini-batches handed over."""

    pushes: int = 0
    """Requests with gradients (geo: with differences) that the store has applied."""

    merged_gradients: int = 0
    """Mini-batches that went into those pushes."""

    pull_seconds: float = 0.0
    """In pulls of rows and dense values."""

    push_seconds: float = 0.0
    """In pushes; in sync with the wait for other workers."""

    wait_seconds: float = 0.0
    """Training threads blocked: for each other, or by a full queue."""

    staleness_last: int = 0
    """Own mini-batches handed over earlier that the dense values of the last one had not seen."""

    staleness_mean: float = 0.0
    """The same, mean over all steps."""

    sent_bytes: int = 0
    """What this worker sent to other workers; mode "collective" only."""

    collectives: int = 0
    """Calls in which it did."""

    @property
    def merge_factor(self) -> float:
        """Mini-batches a push; 0 before the first."""
        return self.merged_gradients / self.pushes if self.pushes else 0.0


class StatsRecorder:
    """Counts. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._steps = 0
        self._pushes = 0
        self._merged = 0
        self._pull_seconds = 0.0
        self._push_seconds = 0.0
        self._wait_seconds = 0.0
        self._staleness_last = 0
        self._staleness_sum = 0

    def pulled(self, seconds: float) -> None:
        with self._lock:
            self._pull_seconds += seconds

    def pushed(self, seconds: float, merged: int) -> None:
        with self._lock:
            self._pushes += 1
            self._merged += merged
            self._push_seconds += seconds

    def stepped(self, waited_seconds: float, staleness: int = 0) -> None:
        with self._lock:
            self._steps += 1
            self._wait_seconds += waited_seconds
            self._staleness_last = staleness
            self._staleness_sum += staleness

    def snapshot(self) -> ModeStats:
        with self._lock:
            stats = ModeStats(
                steps=self._steps,
                pushes=self._pushes,
                merged_gradients=self._merged,
                pull_seconds=self._pull_seconds,
                push_seconds=self._push_seconds,
                wait_seconds=self._wait_seconds,
                staleness_last=self._staleness_last,
            )
            mean = self._staleness_sum / self._steps if self._steps else 0.0
        return replace(stats, staleness_mean=mean)
