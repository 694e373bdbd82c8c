"""The interface between formats and reading threads: pieces of columns, and batches.

A part is a range of a file's records that one thread reads; a piece is a few of its records, as
columns.

In shapes, B is the number of records, N the number of values, and W the number of values per record
in a slot with a shape.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass
from typing import IO, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from sparsefleet import _core
from sparsefleet.data.field import Field, Slot
from sparsefleet.data.progress import WHOLE, FileToRead, Share
from sparsefleet.data.reader_config import ReaderConfig
from sparsefleet.data.reader_stats import ReaderCounts
from sparsefleet.errors import BadLineError, ConfigError, InputFileError

TakenColumn = tuple[NDArray[Any], NDArray[np.int64] | None]
"""(values [B, W], None) for a slot with a shape; (values [N], offsets int64[B + 1]) for others."""


class BadLine(NamedTuple):
    """The position of a malformed line or other record, and what is wrong with it."""

    path: str
    line: int
    """The line number, from 1."""
    column: int | str
    """The byte position in the line, from 1; for files with columns, the column name."""
    what: str
    text: bytes
    unit: str = "line"
    """The word for a record in this kind of file."""
    advice: str = ""
    """What to do about the line, as the end of an error's sentence."""


class BadLines:
    """Counts bad lines up to a limit. Thread-safe.

    quarantine: the file that collects bad lines. It contains one tab-separated line per bad line:
        path, line, column, problem and the line itself. The first bad line of a pass overwrites the
        file.
    """

    def __init__(self, limit: int, quarantine: str | os.PathLike[str] | None) -> None:
        self._limit = limit
        self._quarantine = quarantine
        self._file: IO[bytes] | None = None
        self._lock = threading.Lock()
        self.count = 0

    def take(self, bad: BadLine) -> None:
        """Count a bad line. Raises BadLineError if there are more than the limit."""
        with self._lock:
            self.count += 1
            if self._quarantine is not None:
                self._write(self._quarantine, bad)
            if self.count <= self._limit:
                return
            allowed = (
                f"to skip bad {bad.unit}s, set ReaderConfig(max_bad_lines=..., quarantine=...), "
                "or call set_max_bad_lines on a Dataset"
                if self._limit == 0
                else f"max_bad_lines allows {self._limit} per pass"
            )
            raise BadLineError(
                f"{bad.path}, {bad.unit} {bad.line}, column {bad.column}: {bad.what}{bad.advice}; "
                f"{allowed}"
            )

    def close(self) -> None:
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def _write(self, path: str | os.PathLike[str], bad: BadLine) -> None:
        where = f"{bad.path}\t{bad.line}\t{bad.column}\t{bad.what}\t".encode("utf-8", "replace")
        try:
            if self._file is None:
                self._file = open(path, "wb" if self.count == 1 else "ab")  # noqa: SIM115
            self._file.write(where + bad.text + b"\n")
            self._file.flush()
        except OSError as error:
            raise InputFileError(
                f"{os.fspath(path)}: cannot write bad lines to this file: {error}"
            ) from error


class FilePart(NamedTuple):
    """Records [begin, end) of a file, for one thread to read."""

    path: str
    begin: int = 0
    end: int | None = None
    """One past the last record; None means the end of the file."""
    detail: Any = None
    """Data about the file that the format collected when splitting it."""


class ColumnPart(NamedTuple):
    """Consecutive records of a file, within the reader's share."""

    columns: list[TakenColumn]
    num_records: int
    end: int
    """The record up to which the file has been read, including bad records."""
    total: int | None = None
    """Number of records in the whole file, if known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceContext:
    """State shared by the sources of one pass. Thread-safe."""

    config: ReaderConfig
    bad_lines: BadLines
    counts: ReaderCounts
    stopped: Callable[[], bool]
    """Returns True when no more records are needed."""
    share: Share = WHOLE
    """The records of each file that belong to this worker."""


class RecordSource(Protocol):
    """Reads records for one thread."""

    def read(self, part: FilePart, room: Callable[[], int]) -> Generator[ColumnPart, None, None]:
        """Yield the records of `part` in order, at most `room()` of them in each piece.

        The last piece, which may be empty, ends where `part` does; at the end of the file, that
        piece has a `total`. Bad records are skipped, but they are counted and included in
        positions. A bad record ends a piece, so `Share.positions` gives the position of each record
        in a piece.
        """


def slice_column(column: TakenColumn, begin: int, end: int) -> TakenColumn:
    """Return records [begin, end) of a column as views."""
    values, offsets = column
    if offsets is None:
        return values[begin:end], None
    return values[offsets[begin] : offsets[end]], offsets[begin : end + 1] - offsets[begin]


def choose_records(column: TakenColumn, chosen: NDArray[np.bool_]) -> TakenColumn:
    """Return the records of a column for which `chosen`, bool[B], is True.

    >>> values, offsets = choose_records(
    ...     (np.array([7, 8, 9]), np.array([0, 2, 2, 3])), np.array([True, True, False])
    ... )
    >>> values.tolist(), offsets.tolist()
    ([7, 8], [0, 2, 2])
    """
    values, offsets = column
    if offsets is None:
        return values[chosen], None
    lengths = np.diff(offsets)
    ends = np.zeros(int(np.count_nonzero(chosen)) + 1, np.int64)
    np.cumsum(lengths[chosen], out=ends[1:])
    return values[np.repeat(chosen, lengths)], ends


def join_parts(parts: Sequence[ColumnPart]) -> list[TakenColumn]:
    """Concatenate the columns of all parts; a single part is returned unchanged."""
    if len(parts) == 1:
        return parts[0].columns
    return [_join(column) for column in zip(*(part.columns for part in parts), strict=True)]


def _join(pieces: Sequence[TakenColumn]) -> TakenColumn:
    values = np.concatenate([values for values, _ in pieces])
    if pieces[0][1] is None:
        return values, None
    offsets = [np.zeros(1, np.int64)]
    end = 0
    for piece, piece_offsets in pieces:
        assert piece_offsets is not None
        offsets.append(piece_offsets[1:] + end)
        end += len(piece)
    return values, np.concatenate(offsets)


class RecordFormat(ABC):
    """Describes how to parse files into records. Thread-safe, since it keeps no state of a pass."""

    __slots__ = ()

    splits_files: bool = False
    """Whether several threads can read one file."""

    unnamed_input: str | None = None
    """The name of the input of a reader without files; None if files are required."""

    @property
    @abstractmethod
    def columns(self) -> tuple[Slot, ...]:
        """The columns of a batch, in order."""

    @property
    def description(self) -> RecordFormat | tuple[Slot, ...]:
        """What tells how values were read; refers to no data, as the format itself may."""
        return self.columns

    @abstractmethod
    def open_source(self, context: SourceContext) -> RecordSource:
        """Return a source for one reading thread."""

    @abstractmethod
    def check_config(self, config: ReaderConfig, files: list[str]) -> None:
        """Raise ConfigError if these files cannot be read with this config."""

    def split(self, file: FileToRead, config: ReaderConfig) -> list[FilePart]:  # noqa: ARG002
        """Return the unread rest of the file as parts, each of which one thread reads.

        A format that does not split files returns everything from the first unread record on; the
        reader skips the records it has already read.
        """
        begun = bool(file.done) and file.done[0][0] == 0
        return [FilePart(file.path, file.done[0][1] if begun else 0)]


class BatchMaker(Protocol):
    """Makes batches from columns; an `Arrangement`, possibly with functions applied on top."""

    def arrange(self, taken: list[TakenColumn], num_records: int) -> Any:
        """Return a batch of `num_records` records."""


class HashedVocabulary:
    """Maps the hashes of known strings to ids: i + 1 for string i, and 0 for any other string.

    >>> from sparsefleet.data import hash_ids
    >>> HashedVocabulary(("red", "blue"), seed=3).ids(hash_ids(["blue", "green", "red"], 3))
    array([2, 0, 1])
    """

    def __init__(self, texts: Sequence[str], seed: int) -> None:
        hashes = np.array([_core.hash64(text, seed) for text in texts], np.uint64)
        order = np.argsort(hashes)
        self._hashes = hashes[order]
        self._ids = order.astype(np.int64) + 1

    def ids(self, hashed: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the ids of strings with these hashes, in the same shape."""
        if not len(self._hashes):
            return np.zeros_like(hashed)
        wanted = hashed.view(np.uint64)
        places = np.minimum(np.searchsorted(self._hashes, wanted), len(self._hashes) - 1)
        return np.where(self._hashes[places] == wanted, self._ids[places], 0)


def last_values(
    values: NDArray[Any], offsets: NDArray[np.int64], most: int
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return a ragged column that keeps at most the last `most` values of each record.

    >>> last_values(np.array([1, 2, 3, 4]), np.array([0, 3, 4]), 2)
    (array([2, 3, 4]), array([0, 2, 3]))
    """
    lengths = np.diff(offsets)
    if not len(lengths) or lengths.max() <= most:
        return values, offsets
    kept = np.minimum(lengths, most)
    from_end = np.repeat(offsets[1:], lengths) - np.arange(offsets[0], offsets[-1])
    cut = np.zeros(len(offsets), np.int64)
    np.cumsum(kept, out=cut[1:])
    return values[offsets[0] : offsets[-1]][from_end <= most], cut


class Arrangement:
    """Makes batches of columns, or of (columns, label) if there is a label; all arrays are views.

    left_out: columns to leave out of the batches.
    """

    def __init__(
        self,
        columns: tuple[Slot, ...],
        label: str | None,
        config: ReaderConfig,
        *,
        left_out: Collection[str] = (),
    ) -> None:
        self._columns = columns
        self._left_out = frozenset(left_out)
        self._label = label
        self._as_tuple = config.layout == "tuple"
        self._include_last_offset = config.include_last_offset
        self._vocabularies = {
            slot.name: HashedVocabulary(slot.vocabulary, slot.hash_seed or 0)
            for slot in columns
            if isinstance(slot, Field) and slot.vocabulary is not None
        }
        names = [slot.name for slot in columns if slot.name not in self._left_out]
        if label is None:
            return
        if label not in names:
            raise ConfigError(f"label must be one of the columns {names}, got {label!r}")
        if len(names) == 1:
            raise ConfigError(f"the label '{label}' is the only column; add an input column")

    def arrange(self, taken: list[TakenColumn], num_records: int) -> Any:
        """Return a batch of `num_records` records."""
        named = {
            slot.name: self._column(slot, values, offsets, num_records)
            for slot, (values, offsets) in zip(self._columns, taken, strict=True)
            if slot.name not in self._left_out
        }
        if self._label is None:
            return tuple(named.values()) if self._as_tuple else named
        label = named.pop(self._label)
        return (tuple(named.values()) if self._as_tuple else named), label

    def _column(
        self, slot: Slot, values: NDArray[Any], offsets: NDArray[np.int64] | None, num_records: int
    ) -> Any:
        vocabulary = self._vocabularies.get(slot.name)
        if vocabulary is not None:
            values = vocabulary.ids(values)
            if slot.name == self._label:
                values = values.astype(np.float32)
        if slot.shape is None:
            assert offsets is not None
            if isinstance(slot, Field) and slot.max_values is not None:
                values, offsets = last_values(values, offsets, slot.max_values)
            return values, offsets if self._include_last_offset else offsets[:-1]
        return values.reshape(num_records, *slot.shape)
