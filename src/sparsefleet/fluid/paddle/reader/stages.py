"""The implementation of the reader decorators, which track the position after each item."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from itertools import islice, zip_longest
from typing import Any

from sparsefleet.errors import ConfigError, DataError
from sparsefleet.fluid.paddle.reader.background import Background, check_count
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
