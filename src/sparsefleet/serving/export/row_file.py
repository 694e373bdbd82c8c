"""Row files, which are sorted by key and memory-mapped for lookups.

In shapes, N is the number of rows, D the row width.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sparsefleet.errors import CorruptFileError, InternalError
from sparsefleet.serving.export.export_directory import PendingExport
from sparsefleet.serving.export.keyed_rows import KeyedRows
from sparsefleet.serving.export.manifest import ExportedTable
from sparsefleet.serving.export.quantization import (
    EncodedRows,
    QuantizationError,
    RowFormat,
    decode_rows,
    encode_rows,
)
from sparsefleet.store import Rows
from sparsefleet.store.arrays import Floats, Keys

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["RowFile", "is_compressed", "open_tables", "row_schema", "write_rows"]

# Flatbuffers of Arrow's format/Message.fbs. Message: version is field 0, header_type field 1,
# header field 2, custom_metadata field 4; RecordBatch: compression is field 3.
_RECORD_BATCH, _DICTIONARY_BATCH = 3, 2
_VERSION, _HEADER_TYPE, _HEADER, _CUSTOM_METADATA = 0, 1, 2, 4
_COMPRESSION = 3
_V5 = 4


def is_compressed(metadata: bytes) -> bool:
    """Return whether a message holds a record batch with compressed buffers.

    A few compressed bytes could expand to any number of rows in memory. Raises ValueError for
    damaged metadata and for dictionaries, which can also expand.
    """
    try:
        message = struct.unpack_from("<I", metadata, 0)[0]
        at = _field(metadata, message, _HEADER_TYPE)
        kind = metadata[at] if at else 0
        if kind == _DICTIONARY_BATCH:
            raise ValueError("dictionaries are not supported")
        at = _field(metadata, message, _HEADER)
        if kind != _RECORD_BATCH or not at:
            return False
        batch = at + struct.unpack_from("<I", metadata, at)[0]
        return _field(metadata, batch, _COMPRESSION) != 0 or _has_old_notes(metadata, message)
    except (struct.error, IndexError) as error:
        raise ValueError("a message is truncated") from error


def _has_old_notes(metadata: bytes, message: int) -> bool:
    """Return whether a message before version 5 has notes, where Arrow 0.17 named the codec."""
    at = _field(metadata, message, _VERSION)
    version = struct.unpack_from("<h", metadata, at)[0] if at else 0
    return version < _V5 and _field(metadata, message, _CUSTOM_METADATA) != 0


def _field(raw: bytes, table: int, index: int) -> int:
    """Return the position of field `index` in the flatbuffer table, or 0 if it is absent."""
    vtable = table - struct.unpack_from("<i", raw, table)[0]
    size = struct.unpack_from("<H", raw, vtable)[0]
    place = 4 + 2 * index
    if place + 2 > size:
        return 0
    offset: int = struct.unpack_from("<H", raw, vtable + place)[0]
    return table + offset if offset else 0


class RowFile(KeyedRows):
    """The rows of one table. Opening the file reads no rows; a lookup reads only the rows it needs.

    Thread-safe.
    """

    def __init__(self, path: Path, entry: ExportedTable) -> None:
        super().__init__(entry)
        columns = _map_columns(path, entry)
        self.keys: Keys = columns[0]
        """All keys, in ascending order: uint64[N]."""
        self.rows = EncodedRows(
            columns[1].reshape(entry.rows, entry.dim), columns[2] if len(columns) > 2 else None
        )
        """The rows of the keys in their storage format."""

    def find(self, keys: Keys) -> tuple[Floats, NDArray[np.bool_]]:
        """Implement `KeyedRows.find` by binary search."""
        order = np.argsort(
            keys
        )  # sorted, so that searches and reads stay close to recently read positions
        places = np.searchsorted(self.keys, keys[order])
        within = places < len(self.keys)
        order, places = order[within], places[within]
        found = self.keys[places] == keys[order]
        order, places = order[found], places[found]
        known = np.zeros(len(keys), np.bool_)
        known[order] = True
        make = np.empty if len(order) == len(keys) else np.zeros
        rows: Floats = make((len(keys), self.entry.dim), np.float32)
        rows[order] = decode_rows(self.rows.take(places))
        return rows, known

    def known(self, keys: Keys) -> NDArray[np.bool_]:
        """Implement `KeyedRows.known` without reading rows."""
        if not len(self.keys):
            return np.zeros(len(keys), np.bool_)
        places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        found: NDArray[np.bool_] = self.keys[places] == keys
        return found


def open_tables(directory: Path, entries: Iterable[ExportedTable]) -> dict[str, RowFile]:
    """Open the rows of all tables in an export, by name."""
    return {entry.name: RowFile(directory / entry.file, entry) for entry in entries}


def _map_columns(path: Path, entry: ExportedTable) -> list[NDArray[Any]]:
    """Return keys, flat values and, for int8, scales as views of the mapped file."""
    import pyarrow as pa  # imported here because it takes 40 MB, needed only to open an export

    try:
        wanted = row_schema(entry.name, entry.dim, entry.format)
        file = pa.memory_map(str(path))
        num_batches = pa.ipc.open_file(file).num_record_batches
        file.seek(_MAGIC_BYTES)  # the messages follow one another, as in a stream
        messages = pa.ipc.MessageReader.open_stream(file)
        schema = pa.ipc.read_schema(messages.read_next_message())
        batch = None
        if num_batches == 1:
            message = messages.read_next_message()
            if is_compressed(message.metadata.to_pybytes()):
                raise CorruptFileError(f"{path} is compressed, expected plain rows")
            batch = pa.ipc.read_record_batch(message, schema)
            batch.validate()  # checks that the file contains all column bytes, without reading rows
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, OverflowError, StopIteration, ValueError) as error:
        raise CorruptFileError(f"{path} is not a row file: {error}") from error
    if batch is None or not schema.equals(wanted) or batch.num_rows != entry.rows:
        found = "none" if batch is None else f"{batch.num_rows:,} rows of {schema.types}"
        raise CorruptFileError(
            f"{path} has {found}, expected {entry.rows:,} rows of {wanted.types}"
        )
    columns = [batch.column(0), batch.column(1).flatten(), *batch.columns[2:]]
    return [column.to_numpy(zero_copy_only=True) for column in columns]


_MAGIC_BYTES = 8  # the start of an Arrow IPC file
_PIECE_ROWS = 1 << 16


def write_rows(
    pending: PendingExport,
    stem: str,
    chunks: Iterable[Rows],
    *,
    table: str,
    dim: int,
    row_format: RowFormat,
) -> tuple[Path, int, QuantizationError]:
    """Write the rows of `chunks` sorted by key; return the path, the row count and the error that
    the row format introduces.

    The file is an Arrow IPC file with one uncompressed record batch; see docs/exporting.md.
    """
    path = pending.path(stem, "arrow")
    with ExitStack() as scratch:
        files = [_Scratch(pending.scratch(f"{stem}{part}"), scratch) for part in "abcdef"]
        unsorted, ordered = files[:3], files[3:]
        error = QuantizationError()
        for chunk in chunks:
            encoded = encode_rows(table, chunk.keys, chunk.values, row_format)
            if row_format != "float32":  # float32 has no error and may hold NaN and infinities
                error.add(chunk.values, decode_rows(encoded))
            _append(unsorted, chunk.keys, encoded)
        values_type = np.dtype(row_format)
        keys = unsorted[0].read(np.dtype(np.uint64), 1).reshape(-1)
        order = np.argsort(keys)
        for piece in _pieces(order):
            _append(ordered, keys[piece], _taken(unsorted, piece, values_type, dim))
        _write_file(path, ordered, row_schema(table, dim, row_format), values_type, dim)
    return path, len(order), error


class _Scratch:
    """A scratch file of raw numbers, removed when the exit stack closes."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self._path = path
        stack.callback(path.unlink, missing_ok=True)
        self._file = stack.enter_context(path.open("wb"))

    def append(self, array: NDArray[Any]) -> None:
        self._file.write(np.ascontiguousarray(array).data)

    def read(self, dtype: np.dtype[Any], width: int) -> NDArray[Any]:
        """Memory-map the whole file: [N, width]."""
        self._file.flush()
        size = self._file.tell()
        if size == 0:
            return np.empty((0, width), dtype)
        return np.memmap(self._path, dtype, "r", shape=(size // (dtype.itemsize * width), width))


def _append(files: list[_Scratch], keys: NDArray[Any], rows: EncodedRows) -> None:
    files[0].append(keys)
    files[1].append(rows.values)
    if rows.scales is not None:
        files[2].append(rows.scales)


def _pieces(order: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    for begin in range(0, len(order), _PIECE_ROWS):
        yield order[begin : begin + _PIECE_ROWS]


def _taken(
    files: list[_Scratch], places: NDArray[np.int64], dtype: np.dtype[Any], dim: int
) -> EncodedRows:
    scales = files[2].read(np.dtype(np.float32), 1).reshape(-1)
    values = files[1].read(dtype, dim)[places]
    return EncodedRows(values, scales[places] if len(scales) else None)


def _write_file(
    path: Path, files: list[_Scratch], schema: pa.Schema, dtype: np.dtype[Any], dim: int
) -> None:
    import pyarrow as pa

    keys = files[0].read(np.dtype(np.uint64), 1).reshape(-1)
    if len(keys) > 1 and not bool((keys[1:] > keys[:-1]).all()):
        raise InternalError(f"{path}: expected each key once, but the store returned a key twice")
    values = pa.FixedSizeListArray.from_arrays(
        pa.array(files[1].read(dtype, dim).reshape(-1)), type=schema.field("values").type
    )
    columns = [pa.array(keys), values]
    if "scale" in schema.names:
        columns.append(pa.array(files[2].read(np.dtype(np.float32), 1).reshape(-1)))
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))


def row_schema(table: str, dim: int, row_format: RowFormat) -> pa.Schema:
    """Return the schema: key uint64, values in the row format, and for int8 a scale per row.

    >>> row_schema("ads", 8, "int8").names
    ['key', 'values', 'scale']
    """
    import pyarrow as pa

    value = pa.field("item", pa.type_for_alias(row_format), nullable=False)
    columns = [
        pa.field("key", pa.uint64(), nullable=False),
        pa.field("values", pa.list_(value, dim), nullable=False),
    ]
    if row_format == "int8":
        columns.append(pa.field("scale", pa.float32(), nullable=False))
    return pa.schema(columns, {"table": table})
