"""The order in which a pass visits records in memory."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsefleet.errors import ConfigError

_SMALLEST_FLOAT = 1e-6  # as in Fluid, smaller floats are treated as 0

Ragged = tuple[NDArray[Any], NDArray[np.int64]]


def drop_zeros(values: NDArray[Any], offsets: NDArray[np.int64]) -> Ragged:
    """Return the values without zeros; a record may end up empty.

    >>> values, offsets = drop_zeros(np.array([0, 0, 7, 0]), np.array([0, 3, 4]))
    >>> values.tolist(), offsets.tolist()
    ([7], [0, 1, 1])
    """
    kept = np.abs(values) >= _SMALLEST_FLOAT if values.dtype.kind == "f" else values != 0
    if kept.all():
        return values, offsets
    before = np.zeros(len(values) + 1, np.int64)
    np.cumsum(kept, out=before[1:])
    return values[kept], before[offsets]


def fill_empty(values: NDArray[Any], offsets: NDArray[np.int64]) -> Ragged:
    """Return the values with one 0 added to each empty record.

    >>> values, offsets = fill_empty(np.array([7]), np.array([0, 1, 1]))
    >>> values.tolist(), offsets.tolist()
    ([7, 0], [0, 1, 2])
    """
    is_empty = offsets[1:] == offsets[:-1]
    if not is_empty.any():
        return values, offsets
    filled = np.insert(values, offsets[:-1][is_empty], 0)
    added = np.zeros(len(offsets), np.int64)
    np.cumsum(is_empty, out=added[1:])
    return filled, offsets + added


class BlockWalk:
    """Takes spans of up to `batch_size` records from contiguous blocks, round robin.

    Training threads with one queue each would produce the same batches: no batch contains records
    from two blocks, and each block may end with a short batch. Thread-safe.

    given: the number of records of each block that an earlier walk has already handed out.

    >>> walk = BlockWalk(7, 3, num_blocks=2)
    >>> [walk.take() for _ in range(4)]
    [(0, 3), (4, 7), (3, 4), None]
    """

    def __init__(
        self,
        num_records: int,
        batch_size: int,
        *,
        num_blocks: int = 1,
        drop_last: bool = False,
        given: Sequence[int] = (),
    ) -> None:
        size, larger = divmod(num_records, num_blocks)
        begins = [block * size + min(block, larger) for block in range(num_blocks + 1)]
        self._begins = begins[:-1]
        self._ends = begins[1:]
        if drop_last:
            self._ends = [
                end - (end - begin) % batch_size
                for begin, end in zip(self._begins, self._ends, strict=True)
            ]
        self._batch_size = batch_size
        self._given = list(given) or [0] * num_blocks
        self._is_over = False
        self._lock = threading.Lock()
        if len(self._given) != num_blocks:
            raise ConfigError(
                f"the state has {len(self._given)} blocks of records, but this data has "
                f"{num_blocks}: use the same number of threads or queues"
            )
        for (begin, end), count in zip(pairwise(begins), self._given, strict=True):
            if not isinstance(count, int) or not 0 <= count <= end - begin:
                raise ConfigError(
                    f"the state says that {count!r} of {end - begin} records in a block were read; "
                    "load the same data"
                )

    def __len__(self) -> int:
        """Return the number of spans in a complete walk."""
        spans = zip(self._begins, self._ends, strict=True)
        return sum(-(-(end - begin) // self._batch_size) for begin, end in spans)

    def take(self) -> tuple[int, int] | None:
        """Return the next span as (first record, one past the last), or None if none are left."""
        with self._lock:
            block = self._next_block()
            if block is None:
                self._is_over = True
                return None
            begin = self._begins[block] + self._given[block]
            end = min(begin + self._batch_size, self._ends[block])
            self._given[block] += end - begin
            return begin, end

    @property
    def is_over(self) -> bool:
        """Whether `take` has returned None. Still False right after the last span was taken."""
        return self._is_over

    @property
    def given(self) -> list[int]:
        """Number of records handed out from each block."""
        with self._lock:
            return list(self._given)

    def _next_block(self) -> int | None:
        """Return the block with the fewest spans taken, among the blocks that have spans left."""
        found: int | None = None
        fewest = 0
        for block, given in enumerate(self._given):
            if self._begins[block] + given >= self._ends[block]:
                continue
            spans = -(-given // self._batch_size)
            if found is None or spans < fewest:
                found, fewest = block, spans
        return found
