"""One pass over records in memory. Letters: B records of a batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from sparsefleet.data.arrangement import Arrangement
from sparsefleet.data.block_walk import BlockWalk
from sparsefleet.data.memory_columns import Records
from sparsefleet.data.memory_records import MemoryRecords
from sparsefleet.data.reader_stats import ReaderCounts
from sparsefleet.data.record_source import TakenColumn
from sparsefleet.data.sparse_zeros import fill_empty


class MemoryPass:
    """An iterator of batches, made by `MemoryData.begin`. Thread-safe: copies run side by side.

    order: which record comes when; None: as they lie.
    slot_orders: columns of which each record has the values of another one.
    fills_empty: gives one 0 to each record that has no value in a slot without shape.
    """

    def __init__(
        self,
        records: MemoryRecords,
        walk: BlockWalk,
        arrangement: Arrangement,
        counts: ReaderCounts,
        *,
        order: Records | None,
        slot_orders: Mapping[int, Records],
        fills_empty: bool,
    ) -> None:
        self._records = records
        self._walk = walk
        self._arrangement = arrangement
        self._counts = counts
        self._order = order
        self._slot_orders = slot_orders
        self._fills_empty = fills_empty

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        span = self._walk.take()
        if span is None:
            raise StopIteration
        begin, end = span
        if self._order is None:
            some = np.arange(begin, end, dtype=np.uint32)
        else:
            some = self._order[begin:end]
        batch = self._arrangement.arrange(self._take(some), end - begin)
        self._counts.add(records=end - begin, batches=1)
        return batch

    def _take(self, some: Records) -> list[TakenColumn]:
        taken = []
        for index, column in enumerate(self._records.columns):
            other = self._slot_orders.get(index)
            values, offsets = column.take(some if other is None else other[some])
            if self._fills_empty and offsets is not None:
                values, offsets = fill_empty(values, offsets)
            taken.append((values, offsets))
        return taken
