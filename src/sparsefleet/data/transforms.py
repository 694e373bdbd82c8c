"""Transforms between records and batches: selecting records and changing batches.

In shapes, B is the number of records.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sparsefleet import _core
from sparsefleet.data.field import Slot
from sparsefleet.data.progress import Progress, Share, Spans
from sparsefleet.data.reader_config import ReaderConfig
from sparsefleet.data.record_source import (
    Arrangement,
    BatchMaker,
    ColumnPart,
    FilePart,
    RecordSource,
    TakenColumn,
    choose_records,
    slice_column,
)
from sparsefleet.errors import ConfigError, DataError

Chosen = NDArray[np.bool_]
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # odd, so no bits are lost


class Selection(Protocol):
    """Selects records. Thread-safe."""

    def choose(self, path: str, positions: NDArray[np.int64], columns: list[TakenColumn]) -> Chosen:
        """Return which of these B records of a file to keep, bool[B]."""


class UserFilter:
    """Keeps the records for which a function returns True; see `Reader.filter`."""

    def __init__(
        self,
        function: Callable[[dict[str, Any]], Any],
        columns: tuple[Slot, ...],
        config: ReaderConfig,
    ) -> None:
        self._function = function
        self._arrangement = Arrangement(columns, None, replace(config, layout="dict"))

    def choose(self, path: str, positions: NDArray[np.int64], columns: list[TakenColumn]) -> Chosen:
        name = _name_of(self._function)
        where = f"{path}, records {positions[0] + 1} to {positions[-1] + 1}"
        batch = self._arrangement.arrange(columns, len(positions))
        try:
            found = np.asarray(self._function(batch))
        except Exception as error:  # user code may raise anything
            raise DataError(
                f"{where}: the function {name} passed to Reader.filter failed: "
                f"{type(error).__name__}: {error}"
            ) from error
        if found.dtype != np.bool_ or found.shape != positions.shape:
            raise DataError(
                f"{where}: the function {name} passed to Reader.filter returned "
                f"{found.dtype}{list(found.shape)}, expected bool[{len(positions)}]: one value per "
                "record"
            )
        return found


class HashRange:
    """Keeps the records whose hash, scaled to [0, 1), lies in [begin, end).

    columns: the columns to hash; None means all, which keeps equal records together.
    """

    def __init__(self, begin: float, end: float, seed: int, columns: Sequence[int] | None) -> None:
        self._begin = begin
        self._end = end
        self._seed = seed
        self._columns = columns

    def choose(self, path: str, positions: NDArray[np.int64], columns: list[TakenColumn]) -> Chosen:
        del path, positions
        hashed = columns if self._columns is None else [columns[at] for at in self._columns]
        scaled = (hash_records(hashed, self._seed) >> np.uint64(11)) * 2.0**-53
        chosen: Chosen = (scaled >= self._begin) & (scaled < self._end)
        return chosen


class NotRead:
    """Keeps the records that no worker of the earlier run had read when the state was saved."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def choose(self, path: str, positions: NDArray[np.int64], columns: list[TakenColumn]) -> Chosen:
        del columns
        return ~self._progress.have_read(path, positions)


class OutsideSpans:
    """Keeps the records that are outside all spans of their file."""

    def __init__(self, spans: Mapping[str, Spans]) -> None:
        self._spans = spans

    def choose(self, path: str, positions: NDArray[np.int64], columns: list[TakenColumn]) -> Chosen:
        del columns
        chosen: Chosen = np.ones(len(positions), np.bool_)
        for begin, end in self._spans.get(path, ()):
            chosen &= (positions < begin) | (positions >= end)
        return chosen


def hash_records(columns: Sequence[TakenColumn], seed: int) -> NDArray[np.uint64]:
    """Return a hash of each of B records that depends only on the record's values and the seed.

    >>> twice = [(np.array([[7], [8], [7]]), None), (np.array([1, 1]), np.array([0, 1, 1, 2]))]
    >>> first, second, third = hash_records(twice, seed=0)
    >>> bool(first == third), bool(first == second)
    (True, False)
    """
    total: NDArray[np.uint64] | None = None
    for values, offsets in columns:
        if offsets is None:
            ends = np.arange(len(values) + 1, dtype=np.int64) * (
                values.nbytes // max(len(values), 1)
            )
        else:
            ends = offsets * values.itemsize
        packed = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        found = _core.hash_texts(packed, ends, seed).view(np.uint64)
        total = found if total is None else total * _MULTIPLIER ^ found
    assert total is not None
    return total


class SelectingSource:
    """Yields only the chosen records of a source; positions still include the other records.

    share: the reader's share of each file. batch_size: records requested from the source at once.
    """

    def __init__(
        self,
        source: RecordSource,
        selections: Sequence[Selection],
        share: Share,
        *,
        batch_size: int,
    ) -> None:
        self._source = source
        self._selections = selections
        self._share = share
        self._batch_size = batch_size

    def read(self, part: FilePart, room: Callable[[], int]) -> Generator[ColumnPart, None, None]:
        """Implement `RecordSource`; each piece's range includes records omitted just before it."""
        # Not room(), which would fill the last places in a batch with single records.
        with contextlib.closing(self._source.read(part, lambda: self._batch_size)) as pieces:
            for piece in pieces:
                if piece.num_records == 0:
                    yield piece
                    continue
                columns, positions = self._choose(part.path, piece)
                begin = 0
                while (end := min(len(positions), begin + room())) < len(positions):
                    cut = [slice_column(column, begin, end) for column in columns]
                    yield ColumnPart(cut, end - begin, int(positions[end - 1]) + 1, piece.total)
                    begin = end
                cut = [slice_column(column, begin, end) for column in columns]
                yield ColumnPart(cut, end - begin, piece.end, piece.total)

    def _choose(self, path: str, piece: ColumnPart) -> tuple[list[TakenColumn], NDArray[np.int64]]:
        columns = piece.columns
        positions = self._share.positions(piece.end, piece.num_records)
        for selection in self._selections:
            if len(positions) == 0:
                break
            chosen = selection.choose(path, positions, columns)
            if not chosen.all():
                columns = [choose_records(column, chosen) for column in columns]
                positions = positions[chosen]
        return columns, positions


class MappedArrangement:
    """Passes each batch made by another arrangement through a function; see `Reader.map`."""

    def __init__(self, inner: BatchMaker, function: Callable[[Any], Any]) -> None:
        self._inner = inner
        self._function = function

    def arrange(self, taken: list[TakenColumn], num_records: int) -> Any:
        batch = self._inner.arrange(taken, num_records)
        try:
            return self._function(batch)
        except Exception as error:  # user code may raise anything
            raise DataError(
                f"the function {_name_of(self._function)} passed to Reader.map failed for a batch "
                f"of {num_records} records: {type(error).__name__}: {error}"
            ) from error


def check_function(name: str, function: object) -> None:
    """Raise ConfigError if `function` cannot be called."""
    if not callable(function):
        raise ConfigError(f"Reader.{name} takes a function, got a {type(function).__name__}")


def _name_of(function: object) -> str:
    return repr(getattr(function, "__name__", type(function).__name__))
