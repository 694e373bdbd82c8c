"""Records in memory, stored as columns, and merging of records with equal text.

In shapes, B is the number of records taken, R the number of records, and G the number of groups of
records with equal text.
"""

from __future__ import annotations

import logging
import mmap
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sparsefleet import _core
from sparsefleet.data.field import Slot
from sparsefleet.data.record_source import TakenColumn
from sparsefleet.errors import DataError

_FIRST_BYTES = 1 << 16
_MOST_BYTES = 1 << 22
_ALIGNMENT = 8
Records = NDArray[np.uint32]
"""Record numbers."""
CompactColumn = tuple[NDArray[Any], NDArray[Any] | None]
"""A column of B records: (values [B, W], None) or, for a slot without a shape, (values [N], lengths
unsigned[B] in the narrowest type).
"""
MAX_RECORDS = 2**32 - 1
_log = logging.getLogger("sparsefleet.data")


class CopyArena:
    """Copies arrays into pieces of memory of up to a few megabytes.

    A piece is returned to the system along with the last copy in it. Individually allocated arrays
    would fragment the heap and stay with the process long after they were freed.

    >>> arena = CopyArena()
    >>> first, second = arena.copy(np.arange(3)), arena.copy(np.ones((2, 2), np.float32))
    >>> first.tolist(), second.tolist()
    ([0, 1, 2], [[1.0, 1.0], [1.0, 1.0]])
    """

    def __init__(self) -> None:
        self._piece: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._used = 0
        self._next_bytes = _FIRST_BYTES

    def copy(self, array: NDArray[Any]) -> NDArray[Any]:
        begin = -(-self._used // _ALIGNMENT) * _ALIGNMENT
        if begin + array.nbytes > len(self._piece):
            memory = mmap.mmap(
                -1, max(self._next_bytes, array.nbytes), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            )
            self._piece, begin = np.frombuffer(memory, np.uint8), 0
            self._next_bytes = min(2 * self._next_bytes, _MOST_BYTES)
        self._used = begin + array.nbytes
        kept = self._piece[begin : self._used].view(array.dtype).reshape(array.shape)
        kept[...] = array
        return kept


class MemoryColumn(Protocol):
    """The values of one slot for all records."""

    @property
    def num_bytes(self) -> int:
        """Memory used, in bytes."""

    def take(self, records: Records) -> TakenColumn:
        """Return copies of the values of these records."""

    def truncate(self, num_records: int) -> None:
        """Keep only the first `num_records` records, and free the memory of the rest."""


class FixedColumn:
    """A slot whose records all have W values, stored only as an array [R, W].

    >>> column = FixedColumn([np.array([[1], [2]]), np.array([[3]])])
    >>> column.take(np.array([2, 0], np.uint32))[0].tolist()
    [[3], [1]]
    """

    def __init__(self, parts: list[NDArray[Any]]) -> None:
        self._values = join_arrays(parts)

    @property
    def num_bytes(self) -> int:
        return self._values.nbytes

    def take(self, records: Records) -> TakenColumn:
        return self._values.take(records, axis=0), None

    def truncate(self, num_records: int) -> None:
        _shrink(self._values, (num_records, *self._values.shape[1:]))


class EvenColumn:
    """A slot without a shape whose records all have `length` values, so no offsets are stored."""

    def __init__(self, parts: list[NDArray[Any]], length: int) -> None:
        self._values = join_arrays(parts)
        self._length = length

    @property
    def num_bytes(self) -> int:
        return self._values.nbytes

    def take(self, records: Records) -> TakenColumn:
        values = self._values.reshape(-1, self._length).take(records, axis=0)
        return values.reshape(-1), np.arange(len(records) + 1, dtype=np.int64) * self._length

    def truncate(self, num_records: int) -> None:
        _shrink(self._values, (num_records * self._length,))


class RaggedColumn:
    """A slot without a shape: values, narrow lengths, and one stored offset per 16 records."""

    def __init__(self, parts: list[NDArray[Any]], lengths: NDArray[Any]) -> None:
        self._values = join_arrays(parts)
        self._lengths = _narrow(lengths)
        ends = np.cumsum(lengths, dtype=np.uint64)
        every = _core.RECORDS_PER_MARK
        self._marks = ends[::every] - lengths[::every]

    @property
    def num_bytes(self) -> int:
        return sum(array.nbytes for array in (self._values, self._lengths, self._marks))

    def take(self, records: Records) -> TakenColumn:
        return _core.gather_ragged(self._values, self._lengths, self._marks, records)

    def truncate(self, num_records: int) -> None:
        mark = num_records // _core.RECORDS_PER_MARK
        behind = slice(mark * _core.RECORDS_PER_MARK, num_records)
        begin = int(self._marks[mark]) if mark < len(self._marks) else len(self._values)
        num_values = begin + int(self._lengths[behind].sum(dtype=np.int64))
        _shrink(self._lengths, (num_records,))
        _shrink(self._marks, (-(-num_records // _core.RECORDS_PER_MARK),))
        _shrink(self._values, (num_values,))


def compact(column: TakenColumn) -> CompactColumn:
    """Return the column with lengths instead of offsets.

    >>> compact((np.array([7, 8, 9]), np.array([0, 1, 3])))[1]
    array([1, 2], dtype=uint8)
    """
    values, offsets = column
    return values, None if offsets is None else _narrow(np.diff(offsets))


def shared_if_even(lengths: NDArray[Any]) -> NDArray[Any]:
    """Return the lengths as a zero-stride view, which needs no memory, if all are equal.

    >>> shared_if_even(np.array([3, 3, 3], np.uint8)).strides
    (0,)
    """
    if len(lengths) and (lengths == lengths[0]).all():
        return np.broadcast_to(lengths[0].copy(), len(lengths))
    return lengths


def copy_column(column: CompactColumn, arena: CopyArena) -> CompactColumn:
    """Return a copy of the column in the arena."""
    values, lengths = column
    if lengths is not None:
        lengths = shared_if_even(lengths)
        lengths = lengths if lengths.strides == (0,) else arena.copy(lengths)
    return arena.copy(values), lengths


def split_texts(column: TakenColumn) -> list[bytes]:
    """Return the strings of a column of dtype "text".

    >>> split_texts((np.frombuffer(b"onetwo", np.uint8), np.array([0, 3, 6])))
    [b'one', b'two']
    """
    values, offsets = column
    assert offsets is not None
    whole = values.tobytes()
    return [whole[begin:end] for begin, end in pairwise(offsets.tolist())]


def join_arrays(parts: list[NDArray[Any]], dtype: np.dtype[Any] | None = None) -> NDArray[Any]:
    """Concatenate the parts, which are removed from the list and freed as they are used."""
    num_rows = sum(map(len, parts))
    joined = np.empty((num_rows, *parts[0].shape[1:]), dtype or parts[0].dtype)
    parts.reverse()
    at = 0
    while parts:
        part = parts.pop()
        joined[at : at + len(part)] = part
        at += len(part)
    return joined


def memory_column(slot: Slot, parts: list[CompactColumn]) -> MemoryColumn:
    """Return the most compact column for these parts, which are removed from the list."""
    values = [part for part, _ in parts]
    all_lengths = [part for _, part in parts if part is not None]
    parts.clear()
    if slot.shape is not None:
        return FixedColumn(values)
    widest = max((part.dtype for part in all_lengths), key=lambda dtype: dtype.itemsize)
    lengths = join_arrays(all_lengths, widest)
    first = int(lengths[0])
    if first > 0 and (lengths == first).all():
        return EvenColumn(values, first)
    return RaggedColumn(values, lengths)


def _shrink(array: NDArray[Any], shape: tuple[int, ...]) -> None:
    # In place, so the end of the memory is returned to the system and nothing is copied. No batch
    # shares it, since batches are copies.
    array.resize(shape, refcheck=False)


def _narrow(lengths: NDArray[Any]) -> NDArray[Any]:
    largest = int(lengths.max(initial=0))
    if largest < 2**8:
        return lengths.astype(np.uint8, copy=False)
    return lengths.astype(np.uint16 if largest < 2**16 else np.uint32, copy=False)


class MemoryRecords:
    """Records joined from parts. Not thread-safe while it is constructed or truncated.

    parts: the columns of each batch, in the order of `slots`. Parts are removed from the list and
        freed one at a time, so no column is in memory twice.

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
        """Return copies of these records, column by column."""
        return [column.take(records) for column in self.columns]

    def truncate(self, num_records: int) -> None:
        """Keep only the first `num_records` records, and free the memory of the rest."""
        for column in self.columns:
            column.truncate(num_records)
        self.num_records = num_records


def num_records_of(columns: Sequence[CompactColumn]) -> int:
    """Return the number of records B in the columns of a batch."""
    values, lengths = columns[0]
    return len(values if lengths is None else lengths)


def check_room(num_records: int) -> None:
    """Raise DataError if there are more records than a 32-bit index can number."""
    if num_records > MAX_RECORDS:
        raise DataError(
            f"MemoryData holds at most {MAX_RECORDS} records, got {num_records}: give each worker "
            "fewer files"
        )


def merge_records(
    records: MemoryRecords, text_column: int, merge_size: int
) -> tuple[MemoryRecords, int]:
    """Return one record per distinct text, sorted by text, and how many records were dropped.

    See `MemoryData.merge_by_text`.
    """
    if records.num_records == 0:
        return records, 0
    slots = records.slots
    groups = _Groups(records.columns[text_column], records.num_records)
    if merge_size > 0:
        groups.keep(groups.sizes == merge_size, f"groups do not have {merge_size} records")
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
    """Groups of records with the same text.

    `members` lists the records group by group; group i starts at `begins[i]` and has `sizes[i]`
    records.
    """

    def __init__(self, column: MemoryColumn, num_records: int) -> None:
        texts = split_texts(column.take(np.arange(num_records, dtype=np.uint32)))
        order = sorted(range(num_records), key=texts.__getitem__)
        self.members: Records = np.array(order, np.uint32)
        begins = [0]
        begins += [at for at in range(1, num_records) if texts[order[at]] != texts[order[at - 1]]]
        self.begins: NDArray[np.int64] = np.array(begins, np.int64)
        self.sizes: NDArray[np.int64] = np.diff([*begins, num_records])

    def keep(self, kept: NDArray[np.bool_], why_others: str) -> None:
        """Drop all groups except `kept`, and log why."""
        if kept.all():
            return
        _log.warning(
            "dropping %d records, since their %d %s",
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
        # Members of a group are adjacent, and so are their values.
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
