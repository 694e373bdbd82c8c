"""Columnar data: the base class of Arrow formats, Arrow IPC, Feather and Parquet files, and tables
in Python.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sparsefleet.data.byte_source import open_file
from sparsefleet.data.field import Field, Slot, as_fields
from sparsefleet.data.progress import FileToRead, missing_spans
from sparsefleet.data.reader_config import ReaderConfig
from sparsefleet.data.record_source import (
    BadLine,
    ColumnPart,
    FilePart,
    RecordFormat,
    SourceContext,
    slice_column,
)
from sparsefleet.errors import ConfigError, DataError, InputFileError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from sparsefleet.data.arrow_columns import SlotColumns

__all__ = ["ArrowStream", "Parquet"]

_MAX_KEPT_BYTES = 64 * 1024  # characters of a bad row
_FILE_MAGIC = b"ARROW1"
_FEATHER_1_MAGIC = b"FEA1"
_NOUN = "Arrow IPC"
_DATASET_ROWS = 8192  # taken from a dataset at a time


class RowBatches(NamedTuple):
    """An opened part of a file, as record batches."""

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]
    begin: int
    """The row of the file at which `batches` starts; the source skips rows before the part."""
    total: int | None
    """Number of rows in the file, if known."""


class ArrowFormat(RecordFormat):
    """A columnar format read by Arrow; only the columns of the slots are read."""

    def __init__(self, *slots: Slot) -> None:
        name = type(self).__name__
        self.fields: tuple[Field, ...] = as_fields(name, slots)
        for field in self.fields:
            if field.separator or not all(isinstance(column, str) for column in field.source):
                raise ConfigError(
                    f"{name}: field '{field.name}' has a separator or a column number, which only "
                    "CSV supports; use a column name"
                )

    @property
    def columns(self) -> tuple[Slot, ...]:
        return self.fields

    @property
    def column_names(self) -> list[str]:
        """The names of the file's columns to read."""
        return list(dict.fromkeys(str(name) for field in self.fields for name in field.source))

    @abstractmethod
    def open_batches(
        self, part: FilePart, config: ReaderConfig
    ) -> contextlib.AbstractContextManager[RowBatches]:
        """Open a part of a file as record batches. Raises InputFileError if that is impossible."""

    def open_source(self, context: SourceContext) -> ArrowSource:
        return ArrowSource(self, context)

    def check_config(self, config: ReaderConfig, files: list[str]) -> None:  # noqa: ARG002
        name = type(self).__name__
        if config.command is not None:
            raise ConfigError(
                f"{name} files cannot be read through a pipe command, which supports only text"
            )
        if config.compression not in ("infer", "none"):
            raise ConfigError(
                f"{name} files have their own compression: leave ReaderConfig.compression at "
                f"'infer', got {config.compression!r}"
            )


class ArrowSource:
    """Converts record batches into columns. Not thread-safe."""

    def __init__(self, format: ArrowFormat, context: SourceContext) -> None:  # noqa: A002
        self._format = format
        self._context = context

    def read(self, part: FilePart, room: Callable[[], int]) -> Generator[ColumnPart, None, None]:
        """Yield pieces of record batches, without copying if types match those of the slots."""
        from sparsefleet.data.arrow_columns import SlotColumns  # loads pyarrow, 40 MB

        with self._format.open_batches(part, self._context.config) as rows:
            fields, schema = self._format.fields, rows.schema
            slots = [SlotColumns(field, schema, part.path) for field in fields]
            at = rows.begin
            for batch in rows.batches:
                if batch.schema != schema:  # the tables of a stream may differ in their types
                    schema = batch.schema
                    slots = [SlotColumns(field, schema, part.path) for field in fields]
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
                    f"{part.path}: the file has {at} rows, but {part.begin} had been read when "
                    "the state was saved: the file has changed since"
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
        """Yield the good rows of a record batch, in pieces of at most `room()` rows."""
        counts, share = self._context.counts, self._context.share
        rows = np.arange((share.rank - first) % share.num, batch.num_rows, share.num)
        if share.num > 1:
            batch = batch.take(rows)
        counts.add(lines=batch.num_rows, bytes=batch.nbytes)
        converted = [slot.convert(batch) for slot in slots]
        bad: dict[int, tuple[str, str]] = {}
        for one in reversed(converted):  # a row with several problems reports the first slot's
            bad.update(one.bad)
        at = 0
        for stop in (*sorted(bad), batch.num_rows):
            while at < stop:
                end = min(stop, at + room())
                columns = [slice_column(one.column, at, end) for one in converted]
                yield ColumnPart(columns, end - at, first + int(rows[end - 1]) + 1, total)
                at = end
            if stop < batch.num_rows:
                counts.add(bad_lines=1)
                column, what = bad[stop]
                text = _text_of(batch.slice(stop, 1))
                self._context.bad_lines.take(
                    BadLine(path, first + int(rows[stop]) + 1, f"'{column}'", what, text, "row")
                )
                at = stop + 1


def _text_of(row: pa.RecordBatch) -> bytes:
    text = json.dumps(row.to_pylist()[0], default=str)
    return text.encode("utf-8", "replace")[:_MAX_KEPT_BYTES]


@contextlib.contextmanager
def file_errors(path: str, noun: str) -> Iterator[None]:
    """Convert errors that Arrow or the file system raises in the block to InputFileError."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise InputFileError(f"{path}: not a valid {noun} file: {error}") from error


class ArrowIpc(ArrowFormat):
    """Arrow IPC files of either layout (file or stream), and Feather files of version 2.

    slots: as for `Parquet`. A file is read by one thread, one record batch at a time.

    >>> import pathlib, tempfile
    >>> import pyarrow, pyarrow.feather
    >>> from sparsefleet.data import ArrowIpc, Reader, Slot
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "day.feather"
    >>> pyarrow.feather.write_feather(pyarrow.table({"ad": [17, 18, 99]}), path)
    >>> [batch["ad"].tolist() for batch in Reader(path, ArrowIpc(Slot("ad", "uint64", ())), 2)]
    [[17, 18], [99]]
    """

    @contextlib.contextmanager
    def open_batches(self, part: FilePart, config: ReaderConfig) -> Iterator[RowBatches]:
        import pyarrow as pa  # 40 MB, so loaded only to read such files

        path = part.path
        with open_file(path, config.storage_options) as file:
            with file_errors(path, _NOUN):
                magic = file.read(len(_FILE_MAGIC))
                if magic.startswith(_FEATHER_1_MAGIC):
                    raise InputFileError(
                        f"{path}: this is a version 1 Feather file; rewrite it with "
                        "pyarrow.feather.write_feather(table, path), which writes version 2"
                    )
                source = pa.PythonFile(file, "r") if "://" in path else pa.OSFile(path)
                opener = pa.ipc.open_file if magic == _FILE_MAGIC else pa.ipc.open_stream
                source.seek(0)
                schema = opener(source).schema
                source.seek(0)
                names = self.column_names
                wanted = [index for index, name in enumerate(schema.names) if name in names]
                options = pa.ipc.IpcReadOptions(included_fields=wanted, use_threads=False)
                reader = opener(source, options=options)
            yield RowBatches(schema, _batches(reader, path), 0, None)


def _batches(reader: Any, path: str) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a file or stream, validated before their values are used."""
    import pyarrow as pa

    with file_errors(path, _NOUN):
        if isinstance(reader, pa.ipc.RecordBatchFileReader):
            for index in range(reader.num_record_batches):
                yield _checked(reader.get_batch(index))
        else:
            for batch in reader:
                yield _checked(batch)


def _checked(batch: pa.RecordBatch) -> pa.RecordBatch:
    batch.validate(full=True)
    return batch


class ArrowStream(ArrowFormat):
    """The rows of a dataset, or of the Arrow tables that a function yields.

    source: a Hugging Face dataset (a `Dataset` or an `IterableDataset`), a Ray Data dataset or
        shard, a pyarrow Table, or a function without arguments that returns an iterable of Arrow
        tables or record batches. The source is read on the reading thread. To resume, the source is
        read again and its first rows are skipped, so it should have the same order each time.
    slots: as for `Parquet`.

    The reader's files are None. With ``Reader(worker_num=N)`` each worker reads the whole source
    and keeps every Nth row, so a Ray Data dataset must be materialized: otherwise each worker would
    execute it separately, in a different order. A shard per worker, such as
    ``ray.train.get_dataset_shard("train")``, needs no ``worker_num``.

    >>> import pyarrow
    >>> from sparsefleet.data import ArrowStream, Reader, Slot
    >>> tables = [pyarrow.table({"ad": [17, 18]}), pyarrow.table({"ad": [99]})]
    >>> format = ArrowStream(lambda: tables, Slot("ad", "uint64", ()))
    >>> [batch["ad"].tolist() for batch in Reader(None, format, batch_size=2)]
    [[17, 18], [99]]
    """

    def __init__(self, source: Any, *slots: Slot) -> None:
        super().__init__(*slots)
        function = _function_of(source)
        if function is None:
            raise ConfigError(
                "ArrowStream takes a Hugging Face or Ray Data dataset, an Arrow table, or a "
                "function that returns an iterable of Arrow tables, got a "
                f"{type(source).__name__}"
            )
        self.function = function
        self._is_unordered = _is_unordered(source)
        named = source if callable(source) else type(source)
        self.unnamed_input = f"<{getattr(named, '__name__', type(named).__name__)}>"

    def open_source(self, context: SourceContext) -> ArrowSource:
        if self._is_unordered and context.share.num > 1:
            raise ConfigError(
                f"ArrowStream got a Ray Data {self.unnamed_input} for worker_num="
                f"{context.share.num}: each worker would execute it separately and in a different "
                "order, so some rows would be read twice and others not at all; pass "
                "dataset.materialize(), or pass the "
                "dataset to RayTrainer(datasets=...) and read ray.train.get_dataset_shard(name) "
                "without worker_num"
            )
        return super().open_source(context)

    @contextlib.contextmanager
    def open_batches(self, part: FilePart, config: ReaderConfig) -> Iterator[RowBatches]:  # noqa: ARG002
        batches = self._batches(part.path)
        first = next(batches, None)
        if first is None:
            raise DataError(
                f"{part.path}: the ArrowStream source yielded no tables; it must yield at least one"
            )
        yield RowBatches(first.schema, itertools.chain([first], batches), 0, None)

    def _batches(self, path: str) -> Iterator[pa.RecordBatch]:
        """Yield record batches; add the table number to the function's errors."""
        import pyarrow as pa

        number = 0
        try:
            tables = iter(self.function())
            while (table := next(tables, None)) is not None:
                number += 1
                if isinstance(table, pa.RecordBatch):
                    yield table
                elif isinstance(table, pa.Table):
                    yield from table.combine_chunks().to_batches() or [_no_rows(table.schema)]
                else:
                    raise DataError(
                        f"{path}, table {number}: expected a pyarrow Table or RecordBatch, found a "
                        f"{type(table).__name__}"
                    )
        except DataError:
            raise
        except Exception as error:  # user code may raise anything
            raise DataError(
                f"{path}, table {number + 1}: the function passed to ArrowStream failed: "
                f"{type(error).__name__}: {error}"
            ) from error


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.RecordBatch.from_arrays([pa.array([], kind) for kind in schema.types], schema=schema)


def _is_unordered(source: Any) -> bool:
    """Return whether this is a Ray Data source whose order of rows may change from pass to pass."""
    if callable(source) or not hasattr(source, "iter_batches"):
        return False
    return all(kind.__name__ != "MaterializedDataset" for kind in type(source).__mro__)


def is_arrow_dataset(source: object) -> bool:
    """Return whether this object is a dataset or table that `ArrowStream` accepts."""
    return not callable(source) and _function_of(source) is not None


def _hugging_face_tables(dataset: Any) -> Iterator[pa.Table]:
    """Return the tables in a Hugging Face `Dataset` or `IterableDataset`."""
    import pyarrow as pa

    if getattr(dataset, "features", None) is not None:
        yield from dataset.with_format("arrow").iter(_DATASET_ROWS)
        return
    # The types of this stream are not known yet. In Arrow format, each example would get its own
    # types, which Hugging Face cannot combine.
    for columns in dataset.with_format(None).iter(_DATASET_ROWS):
        yield pa.table(columns)


def _function_of(source: Any) -> Callable[[], Iterable[pa.Table | pa.RecordBatch]] | None:
    """Return a function that yields the tables of a dataset, or None for any other object.

    The objects are recognized by their methods, so that neither library is imported.
    """
    if callable(source):
        return source  # type: ignore[no-any-return]
    if hasattr(source, "iter_batches"):  # a Ray Data dataset, iterator or shard
        return lambda: source.iter_batches(batch_format="pyarrow", batch_size=_DATASET_ROWS)
    if hasattr(source, "with_format") and hasattr(source, "iter"):  # Hugging Face
        return lambda: _hugging_face_tables(source)
    if hasattr(source, "schema") and hasattr(source, "to_batches"):  # a pyarrow Table or Dataset
        return lambda: source.to_batches() or [_no_rows(source.schema)]
    if hasattr(source, "schema") and hasattr(source, "num_rows"):  # a RecordBatch
        return lambda: [source]
    return None


_PART_BYTES = 1 << 22  # one thread reads several row groups smaller than this
_CHUNK_BYTES = 1 << 23  # bytes of a row group, over all its columns, that are decoded at once
_CHUNK_ROWS = 1 << 16
_CHUNK_ROWS_OF_LISTS = 1 << 13
_PARQUET_NOUN = "Parquet"


class Parquet(ArrowFormat):
    """Parquet files with flat and list columns, read by pyarrow; threads divide up the row groups.

    slots: a `Slot` reads the column of the same name; use a `Field` for other cases. A slot without
        a shape takes single values or lists of any length, including empty lists; a slot with a
        shape takes lists of that many values, or that many columns. Strings are hashed to ids with
        `hash64`.

    >>> import pathlib, tempfile
    >>> import pyarrow, pyarrow.parquet
    >>> from sparsefleet.data import Field, Parquet, Reader, Slot
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "day.parquet"
    >>> table = pyarrow.table({"ads": [[17, 18], []], "age": [30.0, None], "unused": ["a", "b"]})
    >>> pyarrow.parquet.write_table(table, path)
    >>> format = Parquet(Slot("ads"), Field("age", "float", (), missing=-1.0))
    >>> for batch in Reader(path, format, batch_size=2):
    ...     print(batch["ads"], batch["age"])
    (array([17, 18]), array([0, 2])) [30. -1.]
    """

    splits_files = True

    def split(self, file: FileToRead, config: ReaderConfig) -> list[FilePart]:
        """Return the unread rows in parts of one row group each, or of several small groups."""
        with _open(file.path, config, None) as parquet:
            metadata = parquet.metadata
        if file.done and file.done[-1][1] > metadata.num_rows:
            raise InputFileError(
                f"{file.path}: the file has {metadata.num_rows} rows, but {file.done[-1][1]} had "
                "been read when the state was saved: the file has changed since"
            )
        return [
            FilePart(file.path, begin, end, metadata)
            for group_begin, group_end in _group_spans(metadata)
            for begin, end in missing_spans(file.done, group_begin, group_end)
        ] or [FilePart(file.path, metadata.num_rows, metadata.num_rows, metadata)]

    @contextlib.contextmanager
    def open_batches(self, part: FilePart, config: ReaderConfig) -> Iterator[RowBatches]:
        import pyarrow as pa

        names = self.column_names
        with _open(part.path, config, part.detail) as parquet:
            assert part.end is not None
            metadata = parquet.metadata
            groups, begin = _groups_within(metadata, part.begin, part.end)
            with file_errors(part.path, _PARQUET_NOUN):
                schema = parquet.schema_arrow
            wanted = [field.type for field in schema if field.name in names]
            has_lists = any(pa.types.is_nested(kind) for kind in wanted)
            batches = parquet.iter_batches(
                _chunk_rows(metadata, groups, has_lists),
                row_groups=groups,
                columns=names,
                use_threads=False,
            )
            cut = _first_rows(batches, part.end - begin, part.path)
            yield RowBatches(schema, cut, begin, metadata.num_rows)


@contextlib.contextmanager
def _open(path: str, config: ReaderConfig, metadata: Any) -> Iterator[pq.ParquetFile]:
    """Open a file.

    metadata: the file's metadata if it was read before, else None.
    """
    import pyarrow.parquet as pq  # the package takes 40 MB, so it is loaded only to read such files

    remote = "://" in path
    with open_file(path, config.storage_options) as file:
        with file_errors(path, _PARQUET_NOUN):
            parquet = pq.ParquetFile(
                file if remote else path,
                metadata=metadata,
                # Remote files: few large reads. Local files: little memory, even for large groups.
                pre_buffer=remote,
                buffer_size=0 if remote else config.block_bytes,
                page_checksum_verification=True,
            )
        with parquet:
            yield parquet


def _group_spans(metadata: Any) -> Iterator[tuple[int, int]]:
    """Yield the row ranges of row groups, in order; small groups are joined."""
    begin = end = num_bytes = 0
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        end += group.num_rows
        num_bytes += group.total_byte_size
        if num_bytes >= _PART_BYTES:
            yield begin, end
            begin, num_bytes = end, 0
    if begin < end:
        yield begin, end


def _groups_within(metadata: Any, begin: int, end: int) -> tuple[list[int], int]:
    """Return the row groups that overlap rows [begin, end), and the row where the first starts."""
    groups: list[int] = []
    first = row = 0
    for index in range(metadata.num_row_groups):
        next_row = row + metadata.row_group(index).num_rows
        if row < end and next_row > begin:
            first = first if groups else row
            groups.append(index)
        row = next_row
    return groups, first if groups else begin


def _chunk_rows(metadata: Any, groups: list[int], has_lists: bool) -> int:
    """Return how many rows to decode at once to get a few MB; lists may expand a lot when decoded.

    Column metadata would be more precise, but pyarrow aborts the process if it is damaged.
    """
    num_rows: int = sum(metadata.row_group(index).num_rows for index in groups)
    num_bytes: int = sum(metadata.row_group(index).total_byte_size for index in groups)
    most = _CHUNK_ROWS_OF_LISTS if has_lists else _CHUNK_ROWS
    return min(max(_CHUNK_BYTES * num_rows // max(num_bytes, 1), 1), most)


def _first_rows(
    batches: Iterator[pa.RecordBatch], num_rows: int, path: str
) -> Iterator[pa.RecordBatch]:
    """Yield the first `num_rows` rows without reading further; fewer rows raise an error."""
    with file_errors(path, _PARQUET_NOUN):
        while num_rows > 0:
            batch = next(batches, None)
            if batch is None:
                raise InputFileError(
                    f"{path}: row groups have {num_rows} fewer rows than the metadata says: "
                    "the file is damaged"
                )
            yield batch.slice(0, num_rows)
            num_rows -= batch.num_rows
