"""Rows of columnar files into parts of columns."""

from __future__ import annotations

import contextlib
import json
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, NamedTuple

from sparsefleet.data.bad_lines import BadLine
from sparsefleet.data.field import Field, as_fields
from sparsefleet.data.reader_config import ReaderConfig
from sparsefleet.data.record_format import RecordFormat
from sparsefleet.data.record_source import ColumnPart, FilePart, SourceContext, slice_column
from sparsefleet.data.slot import Slot
from sparsefleet.errors import ConfigError, DataError, InputFileError

if TYPE_CHECKING:
    import pyarrow as pa

    from sparsefleet.data.arrow_columns import SlotColumns

_MAX_KEPT_BYTES = 64 * 1024  # of a bad row


class RowBatches(NamedTuple):
    """The rows of a part of a file."""

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]
    begin: int
    """Which row of the file is the first in `batches`; rows before that of the part are left out
    by the source."""
    total: int | None
    """Rows of the file, if that is known."""


class ArrowFormat(RecordFormat):
    """A format of files with columns that Arrow reads; only those of the slots are read."""

    def __init__(self, *slots: Slot) -> None:
        name = type(self).__name__
        self.fields: tuple[Field, ...] = as_fields(name, slots)
        for field in self.fields:
            if field.separator or not all(isinstance(column, str) for column in field.source):
                raise ConfigError(
                    f"{name}: field '{field.name}' has a separator, or the number of a column: "
                    "those are for CSV; give names of columns"
                )

    @property
    def columns(self) -> tuple[Slot, ...]:
        return self.fields

    @property
    def column_names(self) -> list[str]:
        """The columns of the files that are read."""
        return list(dict.fromkeys(str(name) for field in self.fields for name in field.source))

    @abstractmethod
    def open_batches(
        self, part: FilePart, config: ReaderConfig
    ) -> contextlib.AbstractContextManager[RowBatches]:
        """The rows of the part; errors of the file are raised as InputFileError."""

    def open_source(self, context: SourceContext) -> ArrowSource:
        return ArrowSource(self, context)

    def check_config(self, config: ReaderConfig, files: list[str]) -> None:  # noqa: ARG002
        name = type(self).__name__
        if config.command is not None:
            raise ConfigError(f"{name} files do not go through a pipe command: it is for text")
        if config.compression not in ("infer", "none"):
            raise ConfigError(
                f"{name} files are compressed inside: leave ReaderConfig.compression at 'infer', "
                f"not {config.compression!r}"
            )


class ArrowSource:
    """Record batches into columns. Not thread-safe."""

    def __init__(self, format: ArrowFormat, context: SourceContext) -> None:  # noqa: A002
        self._format = format
        self._context = context

    def read(self, part: FilePart, room: Callable[[], int]) -> Generator[ColumnPart, None, None]:
        """Pieces of record batches, without a copy where the types are those of the slots."""
        from sparsefleet.data.arrow_columns import SlotColumns  # it loads pyarrow, 40 MB

        with self._format.open_batches(part, self._context.config) as rows:
            slots = [SlotColumns(field, rows.schema, part.path) for field in self._format.fields]
            at = rows.begin
            for batch in rows.batches:
                skip = min(max(part.begin - at, 0), batch.num_rows)
                at += skip
                if skip < batch.num_rows:
                    yield from self._cut(part.path, slots, batch.slice(skip), at, room, rows.total)
                    at += batch.num_rows - skip
                if self._context.stopped():
                    return
                if part.end is not None and at >= part.end:
                    break
            if at < part.begin:
                raise InputFileError(
                    f"{part.path}: has {at} rows, but {part.begin} had been read when the state "
                    "was saved: it is another file now"
                )
            yield ColumnPart([], 0, at, at if rows.total is None else rows.total)

    def _cut(
        self,
        path: str,
        slots: list[SlotColumns],
        batch: pa.RecordBatch,
        first: int,
        room: Callable[[], int],
        total: int | None,
    ) -> Generator[ColumnPart, None, None]:
        """The rows of a record batch between its bad ones, as much at once as there is room."""
        counts = self._context.counts
        counts.add(lines=batch.num_rows, bytes=batch.nbytes)
        converted = [slot.convert(batch) for slot in slots]
        bad: dict[int, tuple[str, str]] = {}
        for one in reversed(converted):  # of several problems of a row, that of the first slot
            bad.update(one.bad)
        at = 0
        for stop in (*sorted(bad), batch.num_rows):
            while at < stop:
                end = min(stop, at + room())
                columns = [slice_column(one.column, at, end) for one in converted]
                yield ColumnPart(columns, end - at, first + end, total)
                at = end
            if stop < batch.num_rows:
                counts.add(bad_lines=1)
                column, what = bad[stop]
                text = _text_of(batch.slice(stop, 1))
                self._context.bad_lines.take(
                    BadLine(path, first + stop + 1, f"'{column}'", what, text, "row")
                )
                at = stop + 1


def _text_of(row: pa.RecordBatch) -> bytes:
    text = json.dumps(row.to_pylist()[0], default=str)
    return text.encode("utf-8", "replace")[:_MAX_KEPT_BYTES]


@contextlib.contextmanager
def file_errors(path: str, noun: str) -> Iterator[None]:
    """What Arrow or the file system raises inside, as InputFileError."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise InputFileError(
            f"{path}: is no {noun} file, was cut off, or is damaged: {error}"
        ) from error
