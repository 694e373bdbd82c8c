"""Readers made from readers."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from sparsefleet.reader.background import WAIT_S
from sparsefleet.reader.resumable import ReaderFunction, ResumableReader
from sparsefleet.reader.stages import (
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
    "firstn",
    "map_readers",
    "shuffle",
]


def map_readers(func: Callable[..., Any], *readers: ReaderFunction) -> ResumableReader:
    """`func` of one item of each reader, as long as all have one.

    >>> list(map_readers(lambda a, b: a + b, lambda: iter([1, 2]), lambda: iter([10, 20]))())
    [11, 22]
    """
    return Mapped(func, readers)


def compose(*readers: ReaderFunction, check_alignment: bool = True) -> ResumableReader:
    """One tuple of the items of all readers; items that are tuples are joined into it.

    check_alignment: raise ComposeNotAligned if one reader ends before another; else end with it.

    >>> list(compose(lambda: iter([1, 2]), lambda: iter([(3, 4), (5, 6)]))())
    [(1, 3, 4), (2, 5, 6)]
    """
    return Composed(readers, check_alignment)


def chain(*readers: ReaderFunction) -> ResumableReader:
    """The items of the first reader, then those of the next.

    >>> list(chain(lambda: iter([1, 2]), lambda: iter([3]))())
    [1, 2, 3]
    """
    return Chained(readers)


def firstn(reader: ReaderFunction, n: int) -> ResumableReader:
    """At most the first `n` items.

    >>> list(firstn(lambda: iter(range(100)), 3)())
    [0, 1, 2]
    """
    return FirstN(reader, n)


def shuffle(reader: ReaderFunction, buf_size: int, *, seed: int | None = None) -> ResumableReader:
    """Reads `buf_size` items, gives them in a random order, reads the next.

    The order follows from the seed and the number of the pass: another one in each pass, the same
    for the same seed. seed: None draws one from Python's `random`.

    >>> numbers = shuffle(lambda: iter(range(5)), 100, seed=1)
    >>> sorted(numbers())
    [0, 1, 2, 3, 4]
    """
    return Shuffled(reader, buf_size, random.getrandbits(62) if seed is None else seed)


def cache(reader: ReaderFunction) -> ResumableReader:
    """Reads everything in the first pass and keeps it in memory for all.

    >>> numbers = cache(lambda: iter(range(3)))
    >>> list(numbers()), list(numbers())
    ([0, 1, 2], [0, 1, 2])
    """
    return Cached(reader)


def buffered(reader: ReaderFunction, size: int, *, wait_s: float = WAIT_S) -> ResumableReader:
    """Has a thread read up to `size` items ahead.

    wait_s: how long an item may take to come before that is a DataError.

    >>> list(buffered(lambda: iter(range(3)), 2)())
    [0, 1, 2]
    """
    return Buffered(reader, size, wait_s)


def batch(reader: ReaderFunction, batch_size: int, drop_last: bool = False) -> ResumableReader:
    """Lists of `batch_size` items.

    drop_last: leave out a last list that is shorter.

    >>> list(batch(lambda: iter(range(5)), 2)())
    [[0, 1], [2, 3], [4]]
    """
    return Batched(reader, batch_size, drop_last)
