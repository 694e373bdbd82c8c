"""Results of store calls.

In shapes, N is the number of keys, D the row width, S the number of floats of optimizer state per
row, and C the number of counters per row.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparsefleet.store.arrays import Floats, Keys

DataMark = tuple[int, int, int, int]
"""The source of gradients: (stream, epoch, begin, end), that is, positions [begin, end) of a
stream, such as the batches of a worker or the records of a file.
"""


def join_marks(marks: Iterable[DataMark]) -> list[DataMark]:
    """Return the same marks in order, joining marks whose intervals are adjacent.

    >>> join_marks([(0, 1, 4, 5), (0, 1, 3, 4), (0, 2, 5, 6)])
    [(0, 1, 3, 5), (0, 2, 5, 6)]
    """
    joined: list[DataMark] = []
    for stream, epoch, begin, end in sorted(marks):
        if joined and joined[-1][:2] == (stream, epoch) and joined[-1][3] >= begin:
            joined[-1] = (*joined[-1][:3], max(joined[-1][3], end))
        else:
            joined.append((stream, epoch, begin, end))
    return joined


def marks_without(marks: Iterable[DataMark], known: Iterable[DataMark]) -> list[DataMark]:
    """Return the part of `marks` that is not in `known`, in order.

    >>> marks_without([(0, 1, 0, 9), (0, 2, 0, 1)], [(0, 1, 3, 5), (0, 1, 8, 9)])
    [(0, 1, 0, 3), (0, 1, 5, 8), (0, 2, 0, 1)]
    """
    spans: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for stream, epoch, begin, end in join_marks(known):
        spans.setdefault((stream, epoch), []).append((begin, end))
    left: list[DataMark] = []
    for stream, epoch, begin, end in join_marks(marks):
        at = begin
        for first, last in spans.get((stream, epoch), ()):
            if at < min(first, end):
                left.append((stream, epoch, at, min(first, end)))
            at = max(at, last)
        if at < end:
            left.append((stream, epoch, at, end))
    return left


class PushResult(NamedTuple):
    """The outcome of a push."""

    applied: int
    """Number of rows updated; for a dense table, number of elements."""
    rejected_non_finite: int
    """Number of rows skipped because their gradient contained NaN or infinity."""
    not_admitted: int
    """Number of rows skipped because the admission rule has not admitted their key."""


class Rows(NamedTuple):
    """Rows of a table as columns."""

    keys: Keys
    """The keys, uint64[N]."""
    values: Floats
    """The values, float32[N, D]."""
    state: Floats
    """Optimizer state, float32[N, S], laid out as in docs/tables.md."""
    counters: NDArray[np.uint32]
    """Count, step and seconds, if the table keeps them: uint32[N, C]."""


def rows_by_key(chunks: Sequence[Rows]) -> Rows:
    """Join one or more chunks of rows and sort them by key.

    A table's row order differs between processes; files and comparisons need a stable order.
    """
    order = np.argsort(np.concatenate([chunk.keys for chunk in chunks]))
    return Rows(*(np.concatenate(column)[order] for column in zip(*chunks, strict=True)))


_log = logging.getLogger("sparsefleet.store")


class RejectedRows:
    """Counts gradient rows skipped for NaN or infinity, by table. Thread-safe."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()

    def add(self, tables: str, count: int) -> None:
        """Add to the count; log a warning for the first rows and at each power of ten."""
        with self._lock:
            before = self._counts.get(tables, 0)
            total = self._counts[tables] = before + count
        if len(str(total)) > len(str(before)) or before == 0:
            _log.warning(
                "push to %s: %d gradient rows so far contained NaN or infinity and were skipped",
                tables,
                total,
            )
