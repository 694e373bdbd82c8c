"""Parquet files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sparsefleet.data.arrow_format import ArrowFormat, RowBatches, file_errors
from sparsefleet.data.byte_source import open_file
from sparsefleet.data.progress import FileToRead, missing_spans
from sparsefleet.data.reader_config import ReaderConfig
from sparsefleet.data.record_source import FilePart
from sparsefleet.errors import InputFileError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_PART_BYTES = 1 << 22  # one thread reads several row groups smaller than this
_CHUNK_BYTES = 1 << 23  # bytes of a row group, over all its columns, that are decoded at once
_CHUNK_ROWS = 1 << 16
_CHUNK_ROWS_OF_LISTS = 1 << 13
_NOUN = "Parquet"


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
            with file_errors(part.path, _NOUN):
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
    """Open a file. metadata: kept from an earlier opening to avoid reading it again, or None."""
    import pyarrow.parquet as pq  # the package takes 40 MB, so it is loaded only to read such files

    remote = "://" in path
    with open_file(path, config.storage_options) as file:
        with file_errors(path, _NOUN):
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
    with file_errors(path, _NOUN):
        while num_rows > 0:
            batch = next(batches, None)
            if batch is None:
                raise InputFileError(
                    f"{path}: row groups have {num_rows} fewer rows than the metadata says: "
                    "the file is damaged"
                )
            yield batch.slice(0, num_rows)
            num_rows -= batch.num_rows
