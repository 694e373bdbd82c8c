"""Read Parquet files that hold rows or removed keys, one row group at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from sparsefleet.checkpoint.folder import Folder, LocalFolder
from sparsefleet.checkpoint.manifest import FileEntry
from sparsefleet.checkpoint.row_chunk import COLUMNS, RowChunk, RowLayout
from sparsefleet.checkpoint.row_file_writer import columns_of
from sparsefleet.errors import CorruptFileError

__all__ = ["KNOWN_CODECS", "codecs_of", "read_keys", "read_row_file"]

# Read compression codecs from the footer of a Parquet file, without Arrow.
#
# Arrow aborts the process if Python asks for a codec that it does not know, so a damaged or
# hostile file must be checked before that. The footer is a struct in Thrift's compact protocol.

KNOWN_CODECS: Final = range(8)  # UNCOMPRESSED to LZ4_RAW in parquet.thrift

_CODEC_PATH: Final = (4, 1, 3, 4)  # row groups, columns, meta_data, codec
_MAX_DEPTH: Final = 32

# Types of the compact protocol
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)


def codecs_of(file: Any) -> set[int]:
    """Return the codecs of all column chunks. Raises ValueError if the footer cannot be parsed.

    file: a file object open for reading; its position changes.
    """
    size = file.seek(0, 2)
    file.seek(max(size - 8, 0))
    tail = file.read(8)
    length = int.from_bytes(tail[:4], "little")
    if len(tail) < 8 or tail[4:] != b"PAR1" or length + 8 > size:
        raise ValueError("no Parquet footer")
    file.seek(size - 8 - length)
    try:
        return set(_Footer(file.read(length)).codecs())
    except IndexError:
        raise ValueError("the footer ends too early") from None


class _Footer:
    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def codecs(self) -> Iterator[int]:
        return self._walk_struct((), 0)

    def _walk_struct(self, path: tuple[int, ...], depth: int) -> Iterator[int]:
        field = 0
        while header := self._take():
            field = field + (header >> 4) if header >> 4 else self._zigzag()
            kind = header & 15
            if kind not in (_TRUE, _FALSE):  # the type of a field is its value
                yield from self._walk(kind, (*path, field), depth + 1)

    def _walk(self, kind: int, path: tuple[int, ...], depth: int) -> Iterator[int]:
        if depth > _MAX_DEPTH:
            raise ValueError(f"the footer is nested more than {_MAX_DEPTH} levels deep")
        if kind in (_I16, _I32, _I64):
            value = self._zigzag()
            if path == _CODEC_PATH:
                yield value
        elif kind == _STRUCT:
            yield from self._walk_struct(path, depth)
        elif kind in (_LIST, _SET):
            header = self._take()
            count = header >> 4 if header >> 4 < 15 else self._varint()
            for _ in range(count):
                yield from self._walk(header & 15, path, depth + 1)
        elif kind == _MAP:
            count = self._varint()
            kinds = self._take() if count else 0
            for _ in range(count):
                yield from self._walk(kinds >> 4, path, depth + 1)
                yield from self._walk(kinds & 15, path, depth + 1)
        elif kind == _BINARY:
            self._skip(self._varint())
        elif kind == _DOUBLE:
            self._skip(8)
        elif kind in (_TRUE, _FALSE, _BYTE):
            self._skip(1)
        else:
            raise ValueError(f"the footer has a value of unknown type {kind}")

    def _take(self) -> int:
        value = self._content[self._at]
        self._at += 1
        return value

    def _skip(self, count: int) -> None:
        if count > len(self._content) - self._at:
            raise IndexError
        self._at += count

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._take()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
            if shift > 63:
                raise ValueError("the footer has an integer of more than 64 bits")

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)


_LEAST_BYTES = 4  # smallest size of a value


def read_row_file(
    folder: Folder, entry: FileEntry, layout: RowLayout, columns: Sequence[str] = COLUMNS
) -> Iterator[RowChunk]:
    """Yield the rows of a file in chunks of up to 16 MiB. Columns not in `columns` have width 0.

    Raises CorruptFileError if the file does not match its entry and the layout. Does not verify the
    checksum.
    """
    widths = {"values": layout.dim, "state": layout.state, "counters": layout.counters}
    widths = {name: width if name in columns else 0 for name, width in widths.items()}
    wanted = {column.name: _arrow_type(column.dtype, column.width) for column in columns_of(layout)}
    asked = ["key", *(name for name in wanted if widths.get(name))]
    expected = {column.name: column.width or 1 for column in columns_of(layout)}
    for group in _read_groups(folder, entry, wanted, asked, expected):
        keys = group.column("key").to_numpy()

        def matrix(name: str, dtype: str, group: pa.Table = group) -> NDArray[Any]:
            count = group.num_rows
            if not widths[name]:
                return np.empty((count, 0), dtype)
            return _matrix(group.column(name), widths[name], folder.locate(entry.path), name)

        yield RowChunk(
            keys,
            matrix("values", "float32"),
            matrix("state", "float32"),
            matrix("counters", "uint32"),
        )


def read_keys(folder: Folder, entry: FileEntry) -> Iterator[NDArray[np.uint64]]:
    """Yield the keys in a file of removed keys."""
    for group in _read_groups(folder, entry, {"key": pa.uint64()}, ["key"], {"key": 1}):
        yield group.column("key").to_numpy()


def _arrow_type(dtype: str, width: int | None) -> pa.DataType:
    plain = pa.from_numpy_dtype(np.dtype(dtype))
    return plain if width is None else pa.list_(pa.field("element", plain, nullable=False))


@contextmanager
def _as_corrupt(folder: Folder, path: str) -> Iterator[None]:
    with folder.reading(path):
        try:
            yield
        except (pa.ArrowException, ValueError) as error:
            raise CorruptFileError(
                f"{folder.locate(path)}: expected a Parquet file, found: {error}"
            ) from error


def _open(folder: Folder, path: str) -> Any:
    """Open the file; Arrow reads local files directly, without Python."""
    if isinstance(folder, LocalFolder):
        with folder.reading(path):
            return pa.OSFile(folder.allowed(path))
    return folder.open(path)


def _read_groups(
    folder: Folder,
    entry: FileEntry,
    wanted: dict[str, pa.DataType],
    asked: list[str],
    widths: dict[str, int],
) -> Iterator[pa.Table]:
    location = folder.locate(entry.path)
    with _open(folder, entry.path) as file:
        with _as_corrupt(folder, entry.path):
            _check_codecs(file)
            parquet = pq.ParquetFile(file)
            _check_schema(parquet.schema_arrow, wanted, location)
        rows = parquet.metadata.num_rows
        if rows != entry.num_rows:
            raise CorruptFileError(f"{location}: rows: expected {entry.num_rows}, found {rows}")
        for group in range(parquet.num_row_groups):
            with _as_corrupt(folder, entry.path):
                _check_group(parquet.metadata.row_group(group), parquet.schema, widths, location)
                table = parquet.read_row_group(group, columns=asked, use_threads=False)
            yield table


def _check_codecs(file: Any) -> None:
    """Check that `ColumnChunkMetaData.compression`, which _check_group reads, can name them."""
    unknown = codecs_of(file) - set(KNOWN_CODECS)
    file.seek(0)
    if unknown:
        raise ValueError(f"unknown compression codecs {sorted(unknown)}")


def _check_group(group: Any, schema: Any, widths: dict[str, int], location: str) -> None:
    """Check that reading a row group needs no more memory than its size in the file.

    With compression, dictionaries or nulls, a few bytes could stand for any number of rows.
    """
    for place in range(group.num_columns):
        column = group.column(place)
        path = schema.column(place).path
        if column.path_in_schema != path:  # the widths below would be those of another column
            raise CorruptFileError(
                f"{location}: column {place}: expected {path!r}, found {column.path_in_schema!r}"
            )
        name = path.partition(".")[0]
        coding = {*column.encodings, column.compression}
        if column.has_dictionary_page or not coding <= {"PLAIN", "RLE", "UNCOMPRESSED"}:
            raise CorruptFileError(
                f"{location}: {name}: expected plain values, found {', '.join(sorted(coding))}"
            )
        values, size = column.num_values, column.total_compressed_size
        if values != group.num_rows * widths[name] or size < values * _LEAST_BYTES:
            raise CorruptFileError(
                f"{location}: {name}: expected {widths[name]} values in each row, found "
                f"{values} in {group.num_rows} rows and {size} bytes"
            )


def _check_schema(schema: pa.Schema, wanted: dict[str, pa.DataType], location: str) -> None:
    def shown(name: str, kind: pa.DataType, nulls: bool = False) -> str:
        if not pa.types.is_list(kind):
            return f"{name} {kind}{' with nulls' if nulls else ''}"
        nulls = nulls or kind.value_field.nullable
        return f"{name} list of {kind.value_type}{' with nulls' if nulls else ''}"

    expected = [shown(name, kind) for name, kind in wanted.items()]
    found = [shown(field.name, field.type, field.nullable) for field in schema]
    if found != expected:
        raise CorruptFileError(
            f"{location}: columns: expected {', '.join(expected)}, found {', '.join(found)}"
        )


def _matrix(column: pa.ChunkedArray, width: int, location: str, name: str) -> NDArray[Any]:
    """Return lists of equal width as an array [N, width], without copying contiguous lists."""
    parts = []
    for chunk in column.chunks:
        offsets = np.asarray(chunk.offsets)
        if chunk.null_count or not (np.diff(offsets) == width).all():
            raise CorruptFileError(
                f"{location}: {name}: expected {width} values in each row, found other lengths"
            )
        flat = chunk.values.to_numpy()[offsets[0] : offsets[-1]]
        parts.append(flat.reshape(-1, width))
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
