"""Counts how often ids are looked up, and how many of them are distinct."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator

from sparsefleet.monitor.series import Sample, sample

__all__ = ["LOOKUPS", "LookupCounts"]

_EVERY = (
    64  # mini-batches between checks of the most frequent id; a check costs a pass over the ids
)

LookupCount = tuple[str, int, int, Callable[[], float]]
"""A table, its numbers of ids and distinct ids, and a function that returns the share of lookups
that go to the most frequent id.
"""


class LookupCounts:
    """Per-table counts of ids and of distinct ids, and the share of the most frequent id.

    Thread-safe.

    >>> counts = LookupCounts()
    >>> counts.add([("ads", 3, 2, lambda: 2 / 3)])
    >>> [round(each.value, 2) for each in counts.samples()]
    [3.0, 2.0, 0.67]
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tables: dict[str, list[float]] = {}

    def add(self, tables: Iterable[LookupCount]) -> None:
        """Count the lookups of one mini-batch."""
        due = []
        with self._lock:
            for table, num_ids, num_unique, hottest in tables:
                counted = self._tables.get(table)
                if counted is None:
                    counted = self._tables[table] = [0.0, 0.0, 0.0, 0.0]
                if counted[3] % _EVERY == 0 and num_ids:
                    due.append((counted, hottest))
                counted[0] += num_ids
                counted[1] += num_unique
                counted[3] += 1
        for counted, hottest in due:
            counted[2] = hottest()

    def samples(self) -> Iterator[Sample]:
        """Yield the counts of each table as metrics."""
        with self._lock:
            tables = {table: list(counted) for table, counted in self._tables.items()}
        for table, (ids, unique, hot, _) in tables.items():
            yield sample("sparsefleet_worker_lookups_total", ids, table=table)
            yield sample("sparsefleet_worker_unique_lookups_total", unique, table=table)
            yield sample("sparsefleet_worker_hot_key_ratio", hot, table=table)


LOOKUPS = LookupCounts()
"""The lookup counts of this process."""
