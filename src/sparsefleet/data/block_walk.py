"""The order in which a pass over records in memory takes them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import pairwise

from sparsefleet.errors import ConfigError


class BlockWalk:
    """Spans of up to `batch_size` records out of contiguous blocks, a span of each in turn.

    It is what training threads do that have a queue each: no batch has records of two blocks, and
    each block may end with a short one. Thread-safe.

    given: of each block, how many records an earlier walk has given.

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
                f"the state is of {len(self._given)} blocks of records, here are {num_blocks}: the "
                "number of threads, or queues, must be the same"
            )
        for (begin, end), count in zip(pairwise(begins), self._given, strict=True):
            if not isinstance(count, int) or not 0 <= count <= end - begin:
                raise ConfigError(
                    f"the state says that {count!r} records were given of a block of {end - begin}"
                )

    def __len__(self) -> int:
        """Spans of a walk from the beginning."""
        spans = zip(self._begins, self._ends, strict=True)
        return sum(-(-(end - begin) // self._batch_size) for begin, end in spans)

    def take(self) -> tuple[int, int] | None:
        """The next span, as numbers of the first record and the one behind the last."""
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
        """Whether the end was found: the last span alone does not tell."""
        return self._is_over

    @property
    def given(self) -> list[int]:
        """Records given of each block."""
        with self._lock:
            return list(self._given)

    def _next_block(self) -> int | None:
        """The block that has given fewest spans, of those that have any left."""
        found: int | None = None
        fewest = 0
        for block, given in enumerate(self._given):
            if self._begins[block] + given >= self._ends[block]:
                continue
            spans = -(-given // self._batch_size)
            if found is None or spans < fewest:
                found, fewest = block, spans
        return found
