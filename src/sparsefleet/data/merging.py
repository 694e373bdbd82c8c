"""Records with equal text made into one. Letters: R records, G groups of them."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsefleet.data.memory_columns import (
    CompactColumn,
    MemoryColumn,
    Records,
    compact,
    split_texts,
)
from sparsefleet.data.memory_records import MemoryRecords
from sparsefleet.data.slot import Slot

_log = logging.getLogger("sparsefleet.data")


def merge_records(
    records: MemoryRecords, text_column: int, merge_size: int
) -> tuple[MemoryRecords, int]:
    """One record for each text, in the order of texts, and how many records were dropped.

    See `MemoryData.merge_by_text`.
    """
    if records.num_records == 0:
        return records, 0
    slots = records.slots
    groups = _Groups(records.columns[text_column], records.num_records)
    if merge_size > 0:
        groups.keep(groups.sizes == merge_size, f"groups are not of {merge_size} records")
    for slot, column in zip(slots, records.columns, strict=True):
        if slot.shape is None and slot.dtype != "text" and groups.sizes.size:
            has_values = _lengths(column.take(groups.members)) > 0
            owners = np.add.reduceat(has_values.astype(np.int64), groups.begins)
            groups.keep(owners <= 1, f"groups have more than one record with slot '{slot.name}'")
    if not groups.sizes.size:
        return MemoryRecords(slots, []), records.num_records
    merged = [
        _merge_column(slot, column, groups)
        for slot, column in zip(slots, records.columns, strict=True)
    ]
    return MemoryRecords(slots, [merged]), records.num_records - len(groups.members)


class _Groups:
    """Which records have the same text: `members` by group, `begins` and `sizes` of the groups."""

    def __init__(self, column: MemoryColumn, num_records: int) -> None:
        texts = split_texts(column.take(np.arange(num_records, dtype=np.uint32)))
        order = sorted(range(num_records), key=texts.__getitem__)
        self.members: Records = np.array(order, np.uint32)
        begins = [0]
        begins += [at for at in range(1, num_records) if texts[order[at]] != texts[order[at - 1]]]
        self.begins: NDArray[np.int64] = np.array(begins, np.int64)
        self.sizes: NDArray[np.int64] = np.diff([*begins, num_records])

    def keep(self, kept: NDArray[np.bool_], why_others: str) -> None:
        """Drops the groups that are not `kept`."""
        if kept.all():
            return
        _log.warning(
            "%d records are dropped: their %d %s",
            int(self.sizes[~kept].sum()),
            int((~kept).sum()),
            why_others,
        )
        self.members = self.members[np.repeat(kept, self.sizes)]
        self.sizes = self.sizes[kept]
        self.begins = np.cumsum(self.sizes) - self.sizes


def _merge_column(slot: Slot, column: MemoryColumn, groups: _Groups) -> CompactColumn:
    if slot.dtype == "text":
        return compact(column.take(groups.members[groups.begins]))
    values, offsets = column.take(groups.members)
    if offsets is not None:
        # Members of a group lie side by side, and so do their values.
        ends = np.append(groups.begins[1:], len(groups.members))
        return compact((values, np.append(0, offsets[ends])))
    matters = values.reshape(len(values), -1).any(axis=1)
    places = np.where(matters, np.arange(len(values)), -1)
    last = np.maximum.reduceat(places, groups.begins)
    return values[np.where(last < 0, groups.begins, last)], None


def _lengths(taken: tuple[NDArray[Any], NDArray[np.int64] | None]) -> NDArray[np.int64]:
    offsets = taken[1]
    assert offsets is not None
    return np.diff(offsets)
