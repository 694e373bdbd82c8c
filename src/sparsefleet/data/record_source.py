"""Between formats and reading threads: records of a file as parts of columns.

Letters: B records, N values, W values of each record of a slot with a shape.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from sparsefleet.data.bad_lines import BadLines
from sparsefleet.data.reader_config import ReaderConfig
from sparsefleet.data.reader_stats import ReaderCounts

TakenColumn = tuple[NDArray[Any], NDArray[np.int64] | None]
"""(values [B, W], None) of a slot with a shape; (values [N], offsets int64[B + 1]) of another."""


class FilePart(NamedTuple):
    """Records [begin, end) of a file, for one thread to read."""

    path: str
    begin: int = 0
    end: int | None = None
    """None: to the end of the file, wherever that is."""
    detail: Any = None
    """What the format has learned of the file when it was split."""


class ColumnPart(NamedTuple):
    """Some records that lie together in a file."""

    columns: list[TakenColumn]
    num_records: int
    end: int
    """Records of the file up to which everything was read: in this part, in one before, or bad."""
    total: int | None = None
    """Records of the whole file, where that is known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceContext:
    """What the sources of one pass share. Thread-safe."""

    config: ReaderConfig
    bad_lines: BadLines
    counts: ReaderCounts
    stopped: Callable[[], bool]
    """Whether nobody wants more records."""
    worker_index: int = 0
    worker_num: int = 1
    """Where there are no files to split, every `worker_num`-th record is for this worker."""


class RecordSource(Protocol):
    """Reads records for one thread."""

    def read(self, part: FilePart, room: Callable[[], int]) -> Generator[ColumnPart, None, None]:
        """The records of `part`, in order, at most `room()` of them in each piece.

        The last piece, which may have no records, ends where `part` does; if that is the end of
        the file, it has a `total`. Bad records are counted and skipped; positions go over them.
        """


def slice_column(column: TakenColumn, begin: int, end: int) -> TakenColumn:
    """Records [begin, end) of a column, as views."""
    values, offsets = column
    if offsets is None:
        return values[begin:end], None
    return values[offsets[begin] : offsets[end]], offsets[begin : end + 1] - offsets[begin]


def join_parts(parts: Sequence[ColumnPart]) -> list[TakenColumn]:
    """The columns of all parts, one part after the other; of a single one, as they are."""
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
