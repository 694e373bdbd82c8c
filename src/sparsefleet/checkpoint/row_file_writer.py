"""Write the rows of one shard of a table, and the keys that a delta removes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsefleet.checkpoint.folder import Folder, OutputFile, open_folder
from sparsefleet.checkpoint.manifest import FileEntry
from sparsefleet.checkpoint.names import removed_file, row_file
from sparsefleet.checkpoint.parquet_writer import Column, ParquetWriter
from sparsefleet.checkpoint.row_chunk import RowArrays, RowLayout
from sparsefleet.errors import CheckpointError

__all__ = ["RowFileWriter", "write_removed_keys"]

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
