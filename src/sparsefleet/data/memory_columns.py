"""Columns of many records in little memory. Letters: R records held, B records taken, N values."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sparsefleet import _core

Records = NDArray[np.uint32]
"""Which records, by number."""


class MemoryColumn(Protocol):
    """The values of one slot."""

    num_bytes: int
    """Of all memory that it holds."""

    def take(self, records: Records) -> Any:
        """A column of a batch: an array [B, *shape], or (values [N], offsets int64[B + 1])."""


class FixedColumn:
    """As many values in each record: [R, *shape], nothing else.

    >>> FixedColumn([np.array([[1], [2]]), np.array([[3]])]).take(np.array([2, 0], np.uint32))
    array([[3],
           [1]])
    """

    def __init__(self, parts: list[NDArray[Any]]) -> None:
        self._values = np.concatenate(parts)
        self.num_bytes = self._values.nbytes

    def take(self, records: Records) -> NDArray[Any]:
        return self._values.take(records, axis=0)


class EvenColumn:
    """A slot without shape of which every record has `length` values: no offsets are kept."""

    def __init__(self, parts: list[NDArray[Any]], length: int) -> None:
        self._values = np.concatenate(parts).reshape(-1, length)
        self._length = length
        self.num_bytes = self._values.nbytes

    def take(self, records: Records) -> tuple[NDArray[Any], NDArray[np.int64]]:
        values = self._values.take(records, axis=0).reshape(-1)
        return values, np.arange(len(records) + 1, dtype=np.int64) * self._length


class RaggedColumn:
    """A slot without shape: values, lengths as narrow as can be, and a mark for each 16 records."""

    def __init__(self, parts: list[NDArray[Any]], lengths: NDArray[np.int64]) -> None:
        self._values = np.concatenate(parts)
        self._lengths = lengths.astype(_narrowest(int(lengths.max())))
        ends = np.cumsum(lengths)
        begins = ends - lengths
        self._marks = begins[:: _core.RECORDS_PER_MARK].astype(np.uint64)
        self.num_bytes = self._values.nbytes + self._lengths.nbytes + self._marks.nbytes

    def take(self, records: Records) -> tuple[NDArray[Any], NDArray[np.int64]]:
        return _core.gather_ragged(self._values, self._lengths, self._marks, records)


def ragged_column(parts: list[tuple[NDArray[Any], NDArray[np.int64]]]) -> MemoryColumn:
    """From (values, offsets int64[B + 1]) of batches; the smaller kind that holds them."""
    lengths = np.concatenate([np.diff(offsets) for _, offsets in parts])
    values = [part for part, _ in parts]
    first = int(lengths[0])
    if (lengths == first).all():
        return EvenColumn(values, first)
    return RaggedColumn(values, lengths)


def _narrowest(largest: int) -> type[np.unsignedinteger[Any]]:
    if largest < 2**8:
        return np.uint8
    return np.uint16 if largest < 2**16 else np.uint32
