"""Counters for a Reader."""

from __future__ import annotations

import threading
from dataclasses import dataclass, fields, replace
from typing import Any

from sparsefleet.data.batch_queue import BatchQueue


@dataclass(frozen=True, kw_only=True, slots=True)
class ReaderStats:
    """Counts over all passes of a reader so far.

    If producers are blocked, reading is faster than training, as it should be. If consumers are
    blocked, training waits for data: use more threads, a more compact format or a faster disk.

    >>> ReaderStats(lines=5, threads=2).since(ReaderStats(lines=3, threads=1))
    ReaderStats(lines=2, threads=2)
    """

    files: int = 0
    """Number of files read to the end."""
    lines: int = 0
    """Number of lines read, good and bad; rows or records for formats without lines."""
    bytes: int = 0
    """Number of bytes of text after decompression and pipe commands, or of decoded columns."""
    records: int = 0
    """Number of records put into batches."""
    batches: int = 0
    bad_lines: int = 0
    """How many of `lines` were malformed."""
    producers_blocked_s: float = 0.0
    """Total time that reading threads waited for room in the queue."""
    consumers_blocked_s: float = 0.0
    """Total time that consumers waited for a batch."""
    threads: int = 0
    """Number of reading threads in the last pass; 0 if batches come from memory."""

    def since(self, before: ReaderStats) -> ReaderStats:
        """Return the counts since `before`."""
        return self._plus(before, -1, self.threads)

    def __add__(self, other: ReaderStats) -> ReaderStats:
        return self._plus(other, 1, max(self.threads, other.threads))

    def _plus(self, other: ReaderStats, sign: int, threads: int) -> ReaderStats:
        names = [field.name for field in fields(self) if field.name != "threads"]
        counts = {name: getattr(self, name) + sign * getattr(other, name) for name in names}
        return ReaderStats(**counts, threads=threads)

    def __repr__(self) -> str:
        counts = {field.name: getattr(self, field.name) for field in fields(self)}
        shown = ", ".join(f"{name}={value!r}" for name, value in counts.items() if value)
        return f"ReaderStats({shown})"


class ReaderCounts:
    """Counters that several threads add to. Thread-safe.

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
    """Adds up the counts of all passes of a reader, finished or running. Thread-safe.

    >>> tally, counts, queue = ReaderTally(), ReaderCounts(), BatchQueue(1, 1)
    >>> tally.begin(counts, queue)
    >>> counts.add(lines=3)
    >>> tally.end(counts, queue)
    >>> tally.total(threads=2)
    ReaderStats(lines=3, threads=2)
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # garbage collection may end a pass while the lock is held
        self._ended = ReaderStats()
        self._running: list[tuple[ReaderCounts, BatchQueue[Any]]] = []

    def begin(self, counts: ReaderCounts, queue: BatchQueue[Any]) -> None:
        """Register a pass that is starting."""
        with self._lock:
            self._running.append((counts, queue))

    def end(self, counts: ReaderCounts, queue: BatchQueue[Any]) -> None:
        """Add the counts of a pass that has ended."""
        with self._lock:
            self._running.remove((counts, queue))
            self._ended += _stats_of(counts, queue)

    def total(self, threads: int) -> ReaderStats:
        """Return the sum over all passes. threads: the number of threads in the last pass."""
        with self._lock:
            stats = sum((_stats_of(*one) for one in list(self._running)), self._ended)
        return replace(stats, threads=threads)


def _stats_of(counts: ReaderCounts, queue: BatchQueue[Any]) -> ReaderStats:
    return ReaderStats(
        **counts.copy(),
        producers_blocked_s=queue.producers_blocked_s,
        consumers_blocked_s=queue.consumers_blocked_s,
    )
