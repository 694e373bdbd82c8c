"""Readers built from other readers."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import islice, zip_longest
from typing import Any, TypeVar

from sparsefleet.errors import ConfigError, DataError
from sparsefleet.fluid.paddle.reader.background import WAIT_S, Background, check_count
from sparsefleet.fluid.paddle.reader.resumable import ReaderFunction, ResumableReader, resumable

__all__ = [
    "Batched",
    "Buffered",
    "Cached",
    "Chained",
    "ComposeNotAligned",
    "Composed",
    "FirstN",
    "Mapped",
    "Shuffled",
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


_END = object()


class ComposeNotAligned(ValueError):  # noqa: N818  Fluid's name
    """Raised if readers passed to `compose` differ in length."""


class Mapped(ResumableReader):
    """Applies a function to items from several readers; a position has one entry per reader."""

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


class Composed(ResumableReader):
    """Combines items from several readers; a position has one entry per reader."""

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
                        "set check_alignment=False to stop at the shortest"
                    )
                return
            items, positions = zip(*marked, strict=True)
            parts = [item if isinstance(item, tuple) else (item,) for item in items]
            yield tuple(value for part in parts for value in part), list(positions)


class Chained(ResumableReader):
    """Reads one reader after another; a position is a reader's index and that reader's position."""

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


class FirstN(ResumableReader):
    """Reads the first items.

    A position is the number of items read and the source reader's position.
    """

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


class Shuffled(ResumableReader):
    """Shuffles items within buffers."""

    def __init__(self, reader: ReaderFunction, buf_size: int, seed: int) -> None:
        super().__init__()
        self._buf_size = check_count("shuffle: buf_size", buf_size)
        self.kind = f"shuffle by {self._buf_size}"
        self.seed = check_count("shuffle: seed", seed, low=0)
        self.sources = (resumable(reader),)

    def walk(self, pass_number: int, position: Any) -> Iterator[tuple[Any, Any]]:
        # A position is the source's position before the buffer was filled, and the number of items
        # taken.
        before, taken, number = position or (None, 0, 0)
        walk = self.sources[0].walk(pass_number, before)
        while True:
            marked = list(islice(walk, self._buf_size))
            if taken and len(marked) <= taken:
                raise DataError(
                    f"shuffle: {taken} items from a buffer were returned before the state was "
                    f"saved, but the buffer now has {len(marked)}; the data has changed"
                )
            if not marked:
                return
            after = marked[-1][1]
            items = [item for item, _ in marked]
            random.Random(f"{self.seed} {pass_number} {number}").shuffle(items)
            for count in range(taken + 1, len(items)):
                yield items[count - 1], [before, count, number]
            before, taken, number = after, 0, number + 1
            yield items[-1], [before, taken, number]


class Cached(ResumableReader):
    """Keeps items in memory; a position is the number of items returned."""

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
        """Return the items of the source's first pass.

        Reads them again only if their order has changed.
        """
        with self._lock:
            seeds = self.seeds()
            if self._kept is None or self._kept[0] != seeds:
                self._kept = seeds, [item for item, _ in self.sources[0].walk(0, None)]
            return self._kept[1]


class Buffered(ResumableReader):
    """Reads items ahead in a thread."""

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


class Batched(ResumableReader):
    """Groups items into lists; a list's position is the position of its last item."""

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
        raise ConfigError(f"{name}: no reader given, expected at least one")


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
            f"PADDLE_TRAINER_ID must be less than PADDLE_TRAINERS_NUM ({count}), got {own}"
        )

    def read() -> Iterator[Batch]:
        for index, batch in enumerate(batch_reader()):
            if index % count == own:
                mine = batch
            if index % count == count - 1:
                yield mine

    return read
