"""Columns of many records in little memory.

Letters: R records held, B records taken, N values, W values of each record of a slot with a shape.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sparsefleet import _core
from sparsefleet.data.copy_arena import CopyArena
from sparsefleet.data.record_source import TakenColumn
from sparsefleet.data.slot import Slot

Records = NDArray[np.uint32]
"""Which records, by number."""

CompactColumn = tuple[NDArray[Any], NDArray[Any] | None]
"""Of B records: values [B, W] and None; or, of a slot without shape, values [N] and how many
each record has, unsigned[B], as narrow as can be."""


class MemoryColumn(Protocol):
    """The values of one slot."""

    @property
    def num_bytes(self) -> int:
        """Of all memory that it holds."""

    def take(self, records: Records) -> TakenColumn:
        """Copies of these records."""

    def truncate(self, num_records: int) -> None:
        """Forgets the records from this one on, and gives their memory back."""


class FixedColumn:
    """As many values in each record: [R, W], nothing else.

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
    """A slot without shape of which every record has `length` values: no offsets are kept."""

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
    """A slot without shape: values, lengths as narrow as can be, and a mark for each 16 records."""

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
    """The column with lengths in the place of offsets.

    >>> compact((np.array([7, 8, 9]), np.array([0, 1, 3])))[1]
    array([1, 2], dtype=uint8)
    """
    values, offsets = column
    return values, None if offsets is None else _narrow(np.diff(offsets))


def shared_if_even(lengths: NDArray[Any]) -> NDArray[Any]:
    """The same lengths in no memory of their own, if all are equal.

    >>> shared_if_even(np.array([3, 3, 3], np.uint8)).strides
    (0,)
    """
    if len(lengths) and (lengths == lengths[0]).all():
        return np.broadcast_to(lengths[0].copy(), len(lengths))
    return lengths


def copy_column(column: CompactColumn, arena: CopyArena) -> CompactColumn:
    """The same in the memory of the arena."""
    values, lengths = column
    if lengths is not None:
        lengths = shared_if_even(lengths)
        lengths = lengths if lengths.strides == (0,) else arena.copy(lengths)
    return arena.copy(values), lengths


def split_texts(column: TakenColumn) -> list[bytes]:
    """The texts of a column of dtype "text".

    >>> split_texts((np.frombuffer(b"onetwo", np.uint8), np.array([0, 3, 6])))
    [b'one', b'two']
    """
    values, offsets = column
    assert offsets is not None
    whole = values.tobytes()
    return [whole[begin:end] for begin, end in pairwise(offsets.tolist())]


def join_arrays(parts: list[NDArray[Any]], dtype: np.dtype[Any] | None = None) -> NDArray[Any]:
    """One array of all parts, which are taken out of the list and let go one after the other."""
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
    """From the columns of batches, which are taken out of the list; the smallest kind for them."""
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
    # In place: the end of the memory goes back to the system, nothing is copied. No batch shares
    # it, as batches are copies.
    array.resize(shape, refcheck=False)


def _narrow(lengths: NDArray[Any]) -> NDArray[Any]:
    largest = int(lengths.max(initial=0))
    if largest < 2**8:
        return lengths.astype(np.uint8, copy=False)
    return lengths.astype(np.uint16 if largest < 2**16 else np.uint32, copy=False)
