"""Readers built from other readers."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from sparsefleet.errors import ConfigError
from sparsefleet.fluid.paddle.reader.background import WAIT_S
from sparsefleet.fluid.paddle.reader.resumable import ReaderFunction, ResumableReader
from sparsefleet.fluid.paddle.reader.stages import (
    Batched,
    Buffered,
    Cached,
    Chained,
    Composed,
    FirstN,
    Mapped,
    Shuffled,
)

__all__ = [
    "batch",
    "buffered",
    "cache",
    "chain",
    "compose",
    "distributed_batch_reader",
    "firstn",
    "map_readers",
    "shuffle",
]


def map_readers(func: Callable[..., Any], *readers: ReaderFunction) -> ResumableReader:
    """Apply `func` to one item from each reader, until one reader is exhausted.

    >>> list(map_readers(lambda a, b: a + b, lambda: iter([1, 2]), lambda: iter([10, 20]))())
    [11, 22]
    """
    return Mapped(func, readers)


def compose(*readers: ReaderFunction, check_alignment: bool = True) -> ResumableReader:
    """Combine one item from each reader into a tuple, flattening items that are tuples.

    check_alignment: raise ComposeNotAligned if one reader ends before another; otherwise stop
        when the first reader ends.

    >>> list(compose(lambda: iter([1, 2]), lambda: iter([(3, 4), (5, 6)]))())
    [(1, 3, 4), (2, 5, 6)]
    """
    return Composed(readers, check_alignment)


def chain(*readers: ReaderFunction) -> ResumableReader:
    """Read the items of the first reader, then the items of the next reader, and so on.

    >>> list(chain(lambda: iter([1, 2]), lambda: iter([3]))())
    [1, 2, 3]
    """
    return Chained(readers)


def firstn(reader: ReaderFunction, n: int) -> ResumableReader:
    """Read at most the first `n` items.

    >>> list(firstn(lambda: iter(range(100)), 3)())
    [0, 1, 2]
    """
    return FirstN(reader, n)


def shuffle(reader: ReaderFunction, buf_size: int, *, seed: int | None = None) -> ResumableReader:
    """Read `buf_size` items at a time and return them in random order.

    The order depends on the seed and the pass number; it differs between passes and repeats for the
    same seed. seed: if None, a seed is drawn from Python's `random`.

    >>> numbers = shuffle(lambda: iter(range(5)), 100, seed=1)
    >>> sorted(numbers())
    [0, 1, 2, 3, 4]
    """
    return Shuffled(reader, buf_size, random.getrandbits(62) if seed is None else seed)


def cache(reader: ReaderFunction) -> ResumableReader:
    """Read everything in the first pass and keep it in memory for later passes.

    >>> numbers = cache(lambda: iter(range(3)))
    >>> list(numbers()), list(numbers())
    ([0, 1, 2], [0, 1, 2])
    """
    return Cached(reader)


def buffered(reader: ReaderFunction, size: int, *, wait_s: float = WAIT_S) -> ResumableReader:
    """Read up to `size` items ahead in a thread.

    wait_s: seconds to wait for an item before raising DataError.

    >>> list(buffered(lambda: iter(range(3)), 2)())
    [0, 1, 2]
    """
    return Buffered(reader, size, wait_s)


def batch(reader: ReaderFunction, batch_size: int, drop_last: bool = False) -> ResumableReader:
    """Group items into lists of `batch_size`.

    drop_last: drop the last list if it is shorter.

    >>> list(batch(lambda: iter(range(5)), 2)())
    [[0, 1], [2, 3], [4]]
    """
    return Batched(reader, batch_size, drop_last)


Batch = TypeVar("Batch")


def distributed_batch_reader(
    batch_reader: Callable[[], Iterable[Batch]],
) -> Callable[[], Iterator[Batch]]:
    """Give each of N workers every N-th batch of a reader.

    A last round with fewer than N batches is dropped.

    PADDLE_TRAINER_ID and PADDLE_TRAINERS_NUM give the index and the number of workers.
    """
    count = int(os.environ.get("PADDLE_TRAINERS_NUM", "1"))
    own = int(os.environ.get("PADDLE_TRAINER_ID", "0"))
    if not 0 <= own < count:
        raise ConfigError(
            f"PADDLE_TRAINER_ID must be less than PADDLE_TRAINERS_NUM, {count}, got {own}"
        )

    def read() -> Iterator[Batch]:
        for index, batch in enumerate(batch_reader()):
            if index % count == own:
                mine = batch
            if index % count == count - 1:
                yield mine

    return read
