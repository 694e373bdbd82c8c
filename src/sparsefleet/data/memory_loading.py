"""All records of a reader into memory."""

from __future__ import annotations

from sparsefleet.data.memory_columns import CompactColumn, compact
from sparsefleet.data.memory_records import MemoryRecords, check_room, num_records_of
from sparsefleet.data.reader import Reader
from sparsefleet.data.record_source import TakenColumn
from sparsefleet.data.slot import Slot
from sparsefleet.data.sparse_zeros import drop_zeros


def load_records(reader: Reader, *, without_zeros: bool) -> MemoryRecords:
    """One pass over `reader`; records come in the order of its files, whatever its threads.

    without_zeros: leave out the zeros of slots without shape.
    """
    file_numbers = {path: number for number, path in enumerate(reader.files)}
    found: list[tuple[tuple[int, int], list[CompactColumn]]] = []
    num_records = 0
    with reader.begin_columns() as blocks:
        while (block := blocks.take()) is not None:
            last = block.marks[-1]  # a block has records of one file only
            columns = [
                _compact(slot, column, without_zeros)
                for slot, column in zip(reader.columns, block.batch, strict=True)
            ]
            num_records += num_records_of(columns)
            check_room(num_records)
            found.append(((file_numbers[last.path], last.end), columns))
    found.sort(key=lambda pair: pair[0])
    parts = [columns for _, columns in found]
    found.clear()
    return MemoryRecords(reader.columns, parts)


def _compact(slot: Slot, column: TakenColumn, without_zeros: bool) -> CompactColumn:
    values, offsets = column
    if without_zeros and offsets is not None and slot.dtype != "text":
        return compact(drop_zeros(values, offsets))
    return compact(column)
