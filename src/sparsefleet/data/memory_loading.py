"""All records of a reader into memory."""

from __future__ import annotations

from collections import OrderedDict

from sparsefleet.data.copy_arena import CopyArena
from sparsefleet.data.memory_columns import CompactColumn, compact, copy_column
from sparsefleet.data.memory_records import MemoryRecords, check_room, num_records_of
from sparsefleet.data.reader import Reader
from sparsefleet.data.record_source import TakenColumn
from sparsefleet.data.slot import Slot
from sparsefleet.data.sparse_zeros import drop_zeros


def load_records(reader: Reader, *, without_zeros: bool) -> MemoryRecords:
    """One pass over `reader`; records come in the order of its files, whatever its threads.

    without_zeros: leave out the zeros of slots without shape.
    """
    return MemoryRecords(reader.columns, _gather(reader, without_zeros))


def _gather(reader: Reader, without_zeros: bool) -> list[list[CompactColumn]]:
    """The columns of each block, in the order of the files."""
    file_numbers = {path: number for number, path in enumerate(reader.files)}
    arenas = _Arenas(len(reader.columns), most_lanes=reader.threads)
    found: list[tuple[tuple[int, int], list[CompactColumn]]] = []
    num_records = 0
    with reader.begin_columns() as blocks:
        while (block := blocks.take()) is not None:
            last = block.marks[-1]  # a block has records of one file only
            lane = arenas.of_file(last.path)
            columns = [
                copy_column(_compact(slot, column, without_zeros), arena)
                for slot, column, arena in zip(reader.columns, block.batch, lane, strict=True)
            ]
            num_records += num_records_of(columns)
            check_room(num_records)
            found.append(((file_numbers[last.path], last.end), columns))
    found.sort(key=lambda pair: pair[0])
    return [columns for _, columns in found]


class _Arenas:
    """An arena for each column, and all of them for each file that is being read.

    So what lies together is needed together when files are put in order. Those of the file that
    has given nothing for longest, which is read most likely, go to the next one.
    """

    def __init__(self, num_columns: int, *, most_lanes: int) -> None:
        self._num_columns = num_columns
        self._most_lanes = most_lanes
        self._by_file: OrderedDict[str, list[CopyArena]] = OrderedDict()

    def of_file(self, path: str) -> list[CopyArena]:
        lane = self._by_file.pop(path, None)
        if lane is None and len(self._by_file) == self._most_lanes:
            _, lane = self._by_file.popitem(last=False)
        self._by_file[path] = lane = lane or [CopyArena() for _ in range(self._num_columns)]
        return lane


def _compact(slot: Slot, column: TakenColumn, without_zeros: bool) -> CompactColumn:
    values, offsets = column
    if without_zeros and offsets is not None and slot.dtype != "text":
        return compact(drop_zeros(values, offsets))
    return compact(column)
