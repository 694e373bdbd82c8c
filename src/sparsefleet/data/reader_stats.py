"""What a reader has done."""

from __future__ import annotations

import threading
from dataclasses import dataclass, fields, replace
from typing import Any

from sparsefleet.data.batch_queue import BatchQueue


@dataclass(frozen=True, kw_only=True, slots=True)
class ReaderStats:
    """Counts over all passes of a reader so far.

    Where producers are blocked, training is slower than reading, as it should be; where consumers
    are, training waits for data: more threads, fewer bytes, a faster disk.

    >>> ReaderStats(lines=5, threads=2).since(ReaderStats(lines=3, threads=1))
    ReaderStats(lines=2, threads=2)
    """

    files: int = 0
    """Read to their end."""
    lines: int = 0
    """Lines, or rows or records where there are no lines, good and bad ones."""
    bytes: int = 0
    """Of text, after decompression and pipe commands; of columns, as decoded."""
    records: int = 0
    """Handed to the queue, in batches."""
    batches: int = 0
    bad_lines: int = 0
    """Those of `lines` that were malformed."""
    producers_blocked_s: float = 0.0
    """Seconds that reading threads waited for room in the queue, in sum."""
    consumers_blocked_s: float = 0.0
    """Seconds that was waited for a batch."""
    threads: int = 0
    """That read in the pass begun last; 0 where batches come from memory."""

    def since(self, before: ReaderStats) -> ReaderStats:
        """What was counted after `before`."""
        return self._plus(before, -1, self.threads)

    def __add__(self, other: ReaderStats) -> ReaderStats:
        return self._plus(other, 1, max(self.threads, other.threads))

    def _plus(self, other: ReaderStats, sign: int, threads: int) -> ReaderStats:
        names = [field.name for field in fields(self) if field.name != "threads"]
        counts = {name: getattr(self, name) + sign * getattr(other, name) for name in names}
        return ReaderStats(**counts, threads=threads)

    def __repr__(self) -> str:
        told = {field.name: getattr(self, field.name) for field in fields(self)}
        shown = ", ".join(f"{name}={value!r}" for name, value in told.items() if value)
        return f"ReaderStats({shown})"


class ReaderCounts:
    """Counts by many threads. Thread-safe.

    >>> counts = ReaderCounts()
    >>> counts.add(lines=3, bytes=10)
    >>> counts["lines"]
    3
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}

    def add(self, **more: int) -> None:
        with self._lock:
            for name, count in more.items():
                self._counts[name] = self._counts.get(name, 0) + count

    def __getitem__(self, name: str) -> int:
        with self._lock:
            return self._counts.get(name, 0)

    def copy(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)


class ReaderTally:
    """What all passes of a reader have counted, ended or under way. Thread-safe.

    >>> tally, counts, queue = ReaderTally(), ReaderCounts(), BatchQueue(1, 1)
    >>> tally.begin(counts, queue)
    >>> counts.add(lines=3)
    >>> tally.end(counts, queue)
    >>> tally.total(threads=2)
    ReaderStats(lines=3, threads=2)
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a pass may end by a collection in here
        self._ended = ReaderStats()
        self._running: list[tuple[ReaderCounts, BatchQueue[Any]]] = []

    def begin(self, counts: ReaderCounts, queue: BatchQueue[Any]) -> None:
        """A pass begins, with its own counts."""
        with self._lock:
            self._running.append((counts, queue))

    def end(self, counts: ReaderCounts, queue: BatchQueue[Any]) -> None:
        """The pass is over: what it has counted stays."""
        with self._lock:
            self._running.remove((counts, queue))
            self._ended += _stats_of(counts, queue)

    def total(self, threads: int) -> ReaderStats:
        """All of it. threads: of the pass begun last."""
        with self._lock:
            stats = sum((_stats_of(*one) for one in list(self._running)), self._ended)
        return replace(stats, threads=threads)


def _stats_of(counts: ReaderCounts, queue: BatchQueue[Any]) -> ReaderStats:
    return ReaderStats(
        **counts.copy(),
        producers_blocked_s=queue.producers_blocked_s,
        consumers_blocked_s=queue.consumers_blocked_s,
    )
