"""Records as columns in memory, by number. Letters: B records taken."""

from __future__ import annotations

from collections.abc import Sequence

from sparsefleet.data.memory_columns import CompactColumn, MemoryColumn, Records, memory_column
from sparsefleet.data.record_source import TakenColumn
from sparsefleet.data.slot import Slot
from sparsefleet.errors import DataError

MAX_RECORDS = 2**32 - 1


class MemoryRecords:
    """What was gathered in parts, as one. Not thread-safe while it is made or truncated.

    parts: of each batch, its columns in the order of `slots`; they are taken out and let go one
        after the other, so that no column is in memory twice.

    >>> import numpy as np
    >>> slot = Slot("ad", "uint64", ())
    >>> records = MemoryRecords((slot,), [[(np.array([7, 8]), None)], [(np.array([9]), None)]])
    >>> records.num_records, records.take(np.array([2, 0], np.uint32))[0][0].tolist()
    (3, [9, 7])
    """

    def __init__(self, slots: Sequence[Slot], parts: list[list[CompactColumn]]) -> None:
        self.slots = tuple(slots)
        self.num_records = sum(num_records_of(part) for part in parts)
        self.columns: list[MemoryColumn] = []
        check_room(self.num_records)
        if self.num_records == 0:
            parts.clear()
            return
        for slot in self.slots:
            self.columns.append(memory_column(slot, [part.pop(0) for part in parts]))

    @property
    def num_bytes(self) -> int:
        return sum(column.num_bytes for column in self.columns)

    def take(self, records: Records) -> list[TakenColumn]:
        """Copies of these records, column by column."""
        return [column.take(records) for column in self.columns]

    def truncate(self, num_records: int) -> None:
        """Forgets the records from this one on, and gives their memory back."""
        for column in self.columns:
            column.truncate(num_records)
        self.num_records = num_records


def num_records_of(columns: Sequence[CompactColumn]) -> int:
    """B, from the columns of a batch."""
    values, lengths = columns[0]
    return len(values if lengths is None else lengths)


def check_room(num_records: int) -> None:
    """Raises if so many records cannot be numbered."""
    if num_records > MAX_RECORDS:
        raise DataError(
            f"more than {MAX_RECORDS} records do not fit into one MemoryData: give each worker "
            "fewer files"
        )
