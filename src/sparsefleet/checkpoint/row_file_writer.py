"""Write the rows of one shard of a table, and the keys that a delta removes."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import TracebackType
from typing import Any, TypeAlias, Union

import numpy as np
from numpy.typing import NDArray

from sparsefleet.checkpoint.folder import Folder, OutputFile, open_folder
from sparsefleet.checkpoint.manifest import FileEntry
from sparsefleet.checkpoint.names import removed_file, row_file
from sparsefleet.checkpoint.row_chunk import RowArrays, RowLayout
from sparsefleet.errors import CheckpointError

__all__ = [
    "Column",
    "I32",
    "ParquetWriter",
    "RowFileWriter",
    "Struct",
    "Value",
    "encode_struct",
    "varint",
    "write_removed_keys",
]

# Write Parquet files with fixed-width list columns at the speed of the disk.
#
# General writers compute the levels of a list column value by value, which costs ten times as much
# as the copy itself. Here all lists in a column have the same length, so the levels of a page
# depend only on its number of rows; they are computed once, and values are written straight from
# memory. Files have no compression, dictionaries or statistics, and any Parquet reader can read
# them.
#
# The metadata is encoded with the few parts of Thrift's compact protocol that it needs. A struct
# is a dict {field number: value}; the Python type of a value determines its Thrift type: bool,
# I32, int (i64), str, dict (struct), or a list of I32, str or dicts.
#
# In shapes, N is the number of rows in a chunk, W the width of a list column.


class I32(int):
    """An int that is encoded as a Thrift i32, as enums are; a plain int is encoded as an i64."""


Value: TypeAlias = Union[bool, int, str, "Struct", Sequence["Value"]]
Struct: TypeAlias = Mapping[int, Value]

_TRUE, _FALSE, _I32, _I64, _BINARY, _LIST, _STRUCT = 1, 2, 5, 6, 8, 9, 12


def varint(number: int) -> bytes:
    """Encode an unsigned number as LEB128: seven bits per byte, least significant first."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def encode_struct(struct: Struct) -> bytes:
    """Return the encoded struct, with its stop byte.

    >>> encode_struct({1: I32(5), 3: "ab"}).hex()
    '150a2802616200'

    """
    out = bytearray()
    last = 0
    for number, value in sorted(struct.items()):
        kind = _kind_of(value)
        step = number - last
        if 1 <= step <= 15:
            out.append(step << 4 | kind)
        else:
            out.append(kind)
            out += varint(_zigzag(number))
        if kind not in (_TRUE, _FALSE):
            out += _encode(value)
        last = number
    out.append(0)
    return bytes(out)


def _kind_of(value: Value) -> int:
    if isinstance(value, bool):
        return _TRUE if value else _FALSE
    if isinstance(value, I32):
        return _I32
    if isinstance(value, int):
        return _I64
    if isinstance(value, str):
        return _BINARY
    return _STRUCT if isinstance(value, Mapping) else _LIST


def _zigzag(number: int) -> int:
    return number << 1 if number >= 0 else (-number << 1) - 1


def _encode(value: Value) -> bytes:
    if isinstance(value, int):
        return varint(_zigzag(value))
    if isinstance(value, str):
        data = value.encode("utf-8")
        return varint(len(data)) + data
    if isinstance(value, Mapping):
        return encode_struct(value)
    kind = _kind_of(value[0]) if value else _STRUCT
    size = len(value)
    head = bytes([size << 4 | kind]) if size < 15 else bytes([0xF0 | kind]) + varint(size)
    return head + b"".join(map(_encode, value))


_MAGIC = b"PAR1"
_PAGE_BYTES = 1 << 20
_GROUP_BYTES = 16 << 20

# Constants from parquet.thrift.
_REQUIRED, _REPEATED = I32(0), I32(2)
_CONVERTED_LIST = I32(3)
_PLAIN, _RLE = I32(0), I32(3)
_PHYSICAL = {"float32": I32(4), "uint32": I32(1), "uint64": I32(2)}
_CONVERTED = {"uint32": I32(13), "uint64": I32(14)}

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the file, holding numbers or lists of `width` numbers each."""

    name: str
    dtype: str
    """One of float32, uint32, uint64."""
    width: int | None = None
    """Length of each list, >= 1; None for plain numbers."""

    @property
    def row_bytes(self) -> int:
        return np.dtype(self.dtype).itemsize * (self.width or 1)

    def elements(self) -> list[Struct]:
        """Return the schema elements of the column, parents before children."""
        leaf: dict[int, Value] = {
            1: _PHYSICAL[self.dtype],
            3: _REQUIRED,
            4: "element" if self.width else self.name,
        }
        if self.dtype in _CONVERTED:
            leaf[6] = _CONVERTED[self.dtype]
        if not self.width:
            return [leaf]
        outer: Struct = {3: _REQUIRED, 4: self.name, 5: I32(1), 6: _CONVERTED_LIST}
        return [outer, {3: _REPEATED, 4: "list", 5: I32(1)}, leaf]

    def path(self) -> list[str]:
        return [self.name, "list", "element"] if self.width else [self.name]


@lru_cache(maxsize=64)
def _levels(rows: int, width: int) -> bytes:
    """Return the levels of a page: they say where lists start, and that none is empty."""
    starts = np.zeros((rows, width), np.uint8)
    starts[:, 1:] = 1  # repetition level: 0 starts a list, 1 continues it
    bits = np.packbits(starts.reshape(-1), bitorder="little").tobytes()
    repetition = varint(len(bits) << 1 | 1) + bits
    definition = varint(rows * width << 1) + b"\x01"
    return b"".join(struct.pack("<I", len(part)) + part for part in (repetition, definition))


class ParquetWriter:
    """Writes rows column by column by passing chunks of bytes to `write`.

    Buffers up to 16 MiB of rows by reference, so their arrays must not change before `close()`.
    Not thread-safe.
    """

    def __init__(
        self,
        write: Callable[[memoryview | bytes], object],
        columns: Sequence[Column],
        metadata: Mapping[str, str],
    ) -> None:
        self._write = write
        self._columns = list(columns)
        self._metadata = dict(metadata)
        self._row_bytes = sum(column.row_bytes for column in columns)
        self._groups: list[Struct] = []
        self._waiting: list[list[Array]] = []
        self._waiting_rows = 0
        self.num_rows = 0
        self.num_bytes = 0
        self._put(_MAGIC)

    def write(self, arrays: Sequence[Array]) -> None:
        """Add rows: one array per column, [N] or [N, W], with the column's dtype."""
        count = len(arrays[0])
        step = max(1, _GROUP_BYTES // self._row_bytes)
        for begin in range(0, count, step):
            part = [array[begin : begin + step] for array in arrays]
            self._waiting.append(part)
            self._waiting_rows += len(part[0])
            if self._waiting_rows * self._row_bytes >= _GROUP_BYTES // 2:
                self._write_group()

    def close(self) -> None:
        """Write the remaining rows and the footer; the underlying file stays open."""
        self._write_group()
        schema: list[Struct] = [{4: "schema", 5: I32(len(self._columns))}]
        for column in self._columns:
            schema += column.elements()
        footer = encode_struct(
            {
                1: I32(1),
                2: schema,
                3: self.num_rows,
                4: self._groups,
                5: [{1: key, 2: value} for key, value in self._metadata.items()],
                6: "sparsefleet",
            }
        )
        self._put(footer + struct.pack("<I", len(footer)) + _MAGIC)

    def _put(self, data: memoryview | bytes) -> None:
        self._write(data)
        self.num_bytes += len(data)

    def _write_group(self) -> None:
        if not self._waiting_rows:
            return
        begin = self.num_bytes
        chunks: list[Struct] = [
            self._write_column(column, [part[place] for part in self._waiting])
            for place, column in enumerate(self._columns)
        ]
        self._groups.append({1: chunks, 2: self.num_bytes - begin, 3: self._waiting_rows})
        self.num_rows += self._waiting_rows
        self._waiting, self._waiting_rows = [], 0

    def _write_column(self, column: Column, parts: Sequence[Array]) -> Struct:
        begin = self.num_bytes
        step = max(1, _PAGE_BYTES // column.row_bytes)
        for part in parts:
            for first in range(0, len(part), step):
                self._write_page(column, part[first : first + step])
        size = self.num_bytes - begin
        described: Struct = {
            1: _PHYSICAL[column.dtype],
            2: [_PLAIN, _RLE],
            3: column.path(),
            4: I32(0),  # uncompressed
            5: self._waiting_rows * (column.width or 1),
            6: size,
            7: size,
            9: begin,
        }
        return {2: begin, 3: described}

    def _write_page(self, column: Column, rows: Array) -> None:
        little_endian = np.dtype(column.dtype).newbyteorder("<")
        values = np.ascontiguousarray(rows, little_endian)
        levels = _levels(len(rows), column.width) if column.width else b""
        size = I32(len(levels) + values.nbytes)
        layout = {1: I32(values.size), 2: _PLAIN, 3: _RLE, 4: _RLE}
        header = encode_struct({1: I32(0), 2: size, 3: size, 5: layout})
        self._put(header + levels)
        self._put(values.reshape(-1).data.cast("B"))


_MAX_FILE_BYTES = 1 << 30


def columns_of(layout: RowLayout) -> list[Column]:
    """Return the columns of a file of rows, omitting columns of width 0."""
    columns = [
        Column("key", "uint64"),
        Column("values", "float32", layout.dim),
        Column("state", "float32", layout.state),
        Column("counters", "uint32", layout.counters),
    ]
    return [column for column in columns if column.width != 0]


class _OpenFile:
    """A Parquet file being written."""

    def __init__(self, folder: Folder, path: str, table: str, columns: list[Column]) -> None:
        self.path = path
        self._columns = len(columns)
        self.file: OutputFile = folder.create(path)
        try:
            self.parquet = ParquetWriter(self.file.write, columns, {"sparsefleet.table": table})
        except BaseException:
            self.file.discard()
            raise

    def finish(self, shard: int) -> FileEntry:
        self.parquet.close()
        self.file.close()
        return FileEntry(
            self.path, self.file.num_bytes, self.file.checksum, self.parquet.num_rows, shard
        )


class RowFileWriter:
    """Writes the rows of one shard to files of about 1 GiB.

    Holds up to 16 MiB of rows in memory in addition to the current chunk. Files take effect when a
    manifest lists them, so pass the result of `close()` to the process that commits. Not
    thread-safe.

    >>> import numpy as np, tempfile
    >>> from sparsefleet.checkpoint import RowChunk
    >>> from sparsefleet.checkpoint.row_chunk import RowLayout
    >>> rows = RowChunk(np.arange(3, dtype=np.uint64), np.ones((3, 8), np.float32),
    ...                 np.zeros((3, 0), np.float32), np.zeros((3, 0), np.uint32))
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     with RowFileWriter(directory, "00112233aabbccdd", RowLayout("ads", 8)) as writer:
    ...         writer.write(rows)
    ...     [(entry.path, entry.num_rows) for entry in writer.close()]
    [('tables/ads-00112233aabbccdd/00000-of-00001-00000.parquet', 3)]
    """

    def __init__(
        self,
        path: str | Folder,
        token: str,
        layout: RowLayout,
        shard: int = 0,
        num_shards: int = 1,
        *,
        storage_options: Mapping[str, Any] | None = None,
        max_file_bytes: int = _MAX_FILE_BYTES,
    ) -> None:
        self._folder = path if isinstance(path, Folder) else open_folder(path, storage_options)
        self._token = token
        self._layout = layout
        self._shard = shard
        self._num_shards = num_shards
        self._max_file_bytes = max_file_bytes
        self._columns = columns_of(layout)
        self._entries: list[FileEntry] = []
        self._current: _OpenFile | None = None
        self._is_closed = False

    def write(self, rows: RowArrays) -> None:
        """Add rows. Their arrays must not change before `close()`."""
        self._layout.check(rows)
        current = self._current or self._start_file()
        columns: list[NDArray[Any]] = [rows.keys, rows.values, rows.state, rows.counters]
        current.parquet.write([column for column in columns if column.shape[1:] != (0,)])
        if current.parquet.num_bytes >= self._max_file_bytes:
            self._end_file()

    def close(self) -> list[FileEntry]:
        """Finish the last file and return all files. There is at least one, even without rows."""
        if not self._is_closed:
            try:
                if self._current is None and not self._entries:
                    self._start_file()
                self._end_file()
            except BaseException:
                self.discard()
                raise
            self._is_closed = True
        return list(self._entries)

    def discard(self) -> None:
        """Remove all files written so far. Never raises."""
        if self._current is not None:
            self._current.file.discard()
        with contextlib.suppress(CheckpointError):
            self._folder.remove([entry.path for entry in self._entries])
        self._current, self._entries, self._is_closed = None, [], True

    def __enter__(self) -> RowFileWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def _start_file(self) -> _OpenFile:
        path = row_file(
            self._layout.table, self._token, self._shard, self._num_shards, len(self._entries)
        )
        self._current = _OpenFile(self._folder, path, self._layout.table, self._columns)
        return self._current

    def _end_file(self) -> None:
        if self._current is not None:
            self._entries.append(self._current.finish(self._shard))
            self._current = None


def write_removed_keys(
    path: str | Folder,
    token: str,
    table: str,
    shard: tuple[int, int],
    keys: Iterable[NDArray[np.uint64]],
    storage_options: Mapping[str, Any] | None = None,
) -> list[FileEntry]:
    """Write the keys that a delta removes from one shard (index, number of shards) of a table.

    Returns a list with the file's entry, or an empty list if there are no keys; no file is written
    then.
    """
    folder = path if isinstance(path, Folder) else open_folder(path, storage_options)
    some = (array for array in keys if len(array))
    first = next(some, None)
    if first is None:
        return []
    file = _OpenFile(folder, removed_file(table, token, *shard), table, [Column("key", "uint64")])
    try:
        for array in (first, *some):
            file.parquet.write([np.asarray(array, np.uint64)])
        return [file.finish(shard[0])]
    except BaseException:
        file.file.discard()
        raise
