"""Readers made from readers, item by item."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from itertools import islice, zip_longest
from typing import Any

from sparsefleet.errors import ConfigError
from sparsefleet.reader.background import WAIT_S, Background
from sparsefleet.reader.checks import check_count
from sparsefleet.reader.resumable import ReaderFunction, ResumableReader, resumable

__all__ = [
    "ComposeNotAligned",
    "batch",
    "buffered",
    "cache",
    "chain",
    "compose",
    "firstn",
    "map_readers",
    "shuffle",
]

_END = object()


class ComposeNotAligned(ValueError):  # noqa: N818  Fluid's name
    """Readers that `compose` was to put side by side differ in length."""


def map_readers(func: Callable[..., Any], *readers: ReaderFunction) -> ResumableReader:
    """`func` of one item of each reader, as long as all have one.

    >>> list(map_readers(lambda a, b: a + b, lambda: iter([1, 2]), lambda: iter([10, 20]))())
    [11, 22]
    """
    return _Mapped(func, readers)


def compose(*readers: ReaderFunction, check_alignment: bool = True) -> ResumableReader:
    """One tuple of the items of all readers; items that are tuples are joined into it.

    check_alignment: raise ComposeNotAligned if one reader ends before another; else end with it.

    >>> list(compose(lambda: iter([1, 2]), lambda: iter([(3, 4), (5, 6)]))())
    [(1, 3, 4), (2, 5, 6)]
    """
    return _Composed(readers, check_alignment)


def chain(*readers: ReaderFunction) -> ResumableReader:
    """The items of the first reader, then those of the next.

    >>> list(chain(lambda: iter([1, 2]), lambda: iter([3]))())
    [1, 2, 3]
    """
    return _Chained(readers)


def firstn(reader: ReaderFunction, n: int) -> ResumableReader:
    """At most the first `n` items.

    >>> list(firstn(lambda: iter(range(100)), 3)())
    [0, 1, 2]
    """
    return _FirstN(reader, n)


def shuffle(reader: ReaderFunction, buf_size: int, *, seed: int | None = None) -> ResumableReader:
    """Reads `buf_size` items, gives them in a random order, reads the next.

    The order follows from the seed and the number of the pass: another one in each pass, the same
    for the same seed. seed: None draws one from Python's `random`.

    >>> numbers = shuffle(lambda: iter(range(5)), 100, seed=1)
    >>> sorted(numbers())
    [0, 1, 2, 3, 4]
    """
    return _Shuffled(reader, buf_size, random.getrandbits(62) if seed is None else seed)


def cache(reader: ReaderFunction) -> ResumableReader:
    """Reads everything in the first pass and keeps it in memory for all.

    >>> numbers = cache(lambda: iter(range(3)))
    >>> list(numbers()), list(numbers())
    ([0, 1, 2], [0, 1, 2])
    """
    return _Cached(reader)


def buffered(reader: ReaderFunction, size: int, *, wait_s: float = WAIT_S) -> ResumableReader:
    """Has a thread read up to `size` items ahead.

    wait_s: how long an item may take to come before that is a DataError.

    >>> list(buffered(lambda: iter(range(3)), 2)())
    [0, 1, 2]
    """
    return _Buffered(reader, size, wait_s)


def batch(reader: ReaderFunction, batch_size: int, drop_last: bool = False) -> ResumableReader:
    """Lists of `batch_size` items.

    drop_last: leave out a last list that is shorter.

    >>> list(batch(lambda: iter(range(5)), 2)())
    [[0, 1], [2, 3], [4]]
    """
    return _Batched(reader, batch_size, drop_last)


class _Mapped(ResumableReader):
    kind = "map_readers"

    def __init__(self, func: Callable[..., Any], readers: tuple[ReaderFunction, ...]) -> None:
        super().__init__()
        _check_some("map_readers", readers)
        self._func = func
        self.sources = tuple(map(resumable, readers))

    def walk(self, pass_number: int, position: Any) -> Iterator[tuple[Any, Any]]:
        for marked in zip(*_walks(self.sources, pass_number, position), strict=False):
            items, positions = zip(*marked, strict=True)
            yield self._func(*items), list(positions)


class _Composed(ResumableReader):
    kind = "compose"

    def __init__(self, readers: tuple[ReaderFunction, ...], check_alignment: bool) -> None:
        super().__init__()
        _check_some("compose", readers)
        self._check_alignment = check_alignment
        self.sources = tuple(map(resumable, readers))

    def walk(self, pass_number: int, position: Any) -> Iterator[tuple[Any, Any]]:
        walks = _walks(self.sources, pass_number, position)
        for marked in zip_longest(*walks, fillvalue=_END):
            if _END in marked:
                if self._check_alignment:
                    ended = [n for n, one in enumerate(marked) if one is _END]
                    raise ComposeNotAligned(
                        f"compose: reader(s) {ended} of {len(marked)} ended before the others; "
                        "check_alignment=False would end with the shortest"
                    )
                return
            items, positions = zip(*marked, strict=True)
            parts = [item if isinstance(item, tuple) else (item,) for item in items]
            yield tuple(value for part in parts for value in part), list(positions)


class _Chained(ResumableReader):
    kind = "chain"

    def __init__(self, readers: tuple[ReaderFunction, ...]) -> None:
        super().__init__()
        _check_some("chain", readers)
        self.sources = tuple(map(resumable, readers))

    def walk(self, pass_number: int, position: Any) -> Iterator[tuple[Any, Any]]:
        first, inner = position or (0, None)
        for index in range(first, len(self.sources)):
            for item, inner in self.sources[index].walk(pass_number, inner):  # noqa: B020
                yield item, [index, inner]
            inner = None


class _FirstN(ResumableReader):
    kind = "firstn"

    def __init__(self, reader: ReaderFunction, n: int) -> None:
        super().__init__()
        self._n = check_count("firstn: n", n, low=0)
        self.sources = (resumable(reader),)

    def walk(self, pass_number: int, position: Any) -> Iterator[tuple[Any, Any]]:
        had, inner = position or (0, None)
        rest = islice(self.sources[0].walk(pass_number, inner), self._n - had)
        for number, (item, inner) in enumerate(rest, had + 1):
            yield item, [number, inner]


class _Shuffled(ResumableReader):
    def __init__(self, reader: ReaderFunction, buf_size: int, seed: int) -> None:
        super().__init__()
        self._buf_size = check_count("shuffle: buf_size", buf_size)
        self.kind = f"shuffle by {self._buf_size}"
        self.seed = check_count("shuffle: seed", seed, low=0)
        self.sources = (resumable(reader),)

    def walk(self, pass_number: int, position: Any) -> Iterator[tuple[Any, Any]]:
        # A position is that of the source before the buffer was filled, and what was taken of it.
        before, taken, number = position or (None, 0, 0)
        walk = self.sources[0].walk(pass_number, before)
        while True:
            marked = list(islice(walk, self._buf_size))
            if not marked:
                return
            after = marked[-1][1]
            items = [item for item, _ in marked]
            random.Random(f"{self.seed} {pass_number} {number}").shuffle(items)
            for count in range(taken + 1, len(items)):
                yield items[count - 1], [before, count, number]
            before, taken, number = after, 0, number + 1
            yield items[-1], [before, taken, number]


class _Cached(ResumableReader):
    kind = "cache"

    def __init__(self, reader: ReaderFunction) -> None:
        super().__init__()
        self.sources = (resumable(reader),)
        self._lock = threading.Lock()
        self._kept: tuple[list[int], list[Any]] | None = None

    def walk(self, pass_number: int, position: Any) -> Iterator[tuple[Any, Any]]:  # noqa: ARG002
        for number, item in enumerate(self._items_of_all()[position or 0 :], (position or 0) + 1):
            yield item, number

    def _items_of_all(self) -> list[Any]:
        """Those of the source's first pass; read once, or again if its order has become another."""
        with self._lock:
            seeds = self.seeds()
            if self._kept is None or self._kept[0] != seeds:
                self._kept = seeds, [item for item, _ in self.sources[0].walk(0, None)]
            return self._kept[1]


class _Buffered(ResumableReader):
    kind = "buffered"

    def __init__(self, reader: ReaderFunction, size: int, wait_s: float) -> None:
        super().__init__()
        self._size = check_count("buffered: size", size)
        self._wait_s = wait_s
        self.sources = (resumable(reader),)

    def walk(self, pass_number: int, position: Any) -> Iterator[tuple[Any, Any]]:
        ahead = Background(
            lambda: self.sources[0].walk(pass_number, position),
            self._size,
            what="the reader of buffered()",
            wait_s=self._wait_s,
        )
        try:
            yield from ahead
        finally:
            ahead.close()


class _Batched(ResumableReader):
    kind = "batch"

    def __init__(self, reader: ReaderFunction, batch_size: int, drop_last: bool) -> None:
        super().__init__()
        self._batch_size = check_count("batch: batch_size", batch_size)
        self._drop_last = drop_last
        self.sources = (resumable(reader),)

    def walk(self, pass_number: int, position: Any) -> Iterator[tuple[Any, Any]]:
        walk = self.sources[0].walk(pass_number, position)
        while marked := list(islice(walk, self._batch_size)):
            if len(marked) < self._batch_size and self._drop_last:
                return
            yield [item for item, _ in marked], marked[-1][1]


def _walks(
    sources: tuple[ResumableReader, ...], pass_number: int, positions: Any
) -> list[Iterator[tuple[Any, Any]]]:
    positions = positions or [None] * len(sources)
    return [
        source.walk(pass_number, position)
        for source, position in zip(sources, positions, strict=True)
    ]


def _check_some(name: str, readers: tuple[ReaderFunction, ...]) -> None:
    if not readers:
        raise ConfigError(f"{name}: no reader given, wanted at least one")
