"""Rows of an exported table, mapped into memory and found by their keys.

Letters: N rows, D row width.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsefleet.errors import CorruptFileError
from sparsefleet.export.keyed_rows import KeyedRows
from sparsefleet.export.manifest import TableEntry
from sparsefleet.export.quantization import EncodedRows, decode_rows
from sparsefleet.store.arrays import Floats, Keys

__all__ = ["RowFile", "open_tables"]


class RowFile(KeyedRows):
    """The rows of one table. Opening it reads no rows; a lookup reads those it needs.

    Thread-safe.
    """

    def __init__(self, path: Path, entry: TableEntry) -> None:
        super().__init__(entry)
        columns = _map_columns(path, entry)
        self.keys: Keys = columns[0]
        """All keys, rising: uint64[N]."""
        self.rows = EncodedRows(
            columns[1].reshape(entry.rows, entry.dim), columns[2] if len(columns) > 2 else None
        )
        """Of the keys, as they are written."""

    def find(self, keys: Keys) -> tuple[Floats, NDArray[np.bool_]]:
        """As `KeyedRows`, by halving."""
        order = np.argsort(keys)  # in order, the search and the rows are near what was just read
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
        """As `KeyedRows`; reads no rows."""
        if not len(self.keys):
            return np.zeros(len(keys), np.bool_)
        places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        found: NDArray[np.bool_] = self.keys[places] == keys
        return found


def open_tables(directory: Path, entries: Iterable[TableEntry]) -> dict[str, RowFile]:
    """The rows of all tables of an export, by name."""
    return {entry.name: RowFile(directory / entry.file, entry) for entry in entries}


def _map_columns(path: Path, entry: TableEntry) -> list[NDArray[Any]]:
    """Keys, flat values and, in int8, scales, as views of the mapped file."""
    import pyarrow as pa  # only who opens an export pays its 40 MB

    from sparsefleet.export.row_layout import row_schema

    wanted = row_schema(entry.name, entry.dim, entry.format)
    try:
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        schema, num_batches = reader.schema, reader.num_record_batches
        batch = reader.get_batch(0) if num_batches == 1 else None
        if batch is not None:
            batch.validate()  # that the file holds the bytes its columns claim; reads no rows
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise CorruptFileError(f"{path} is no file of rows: {error}") from error
    if batch is None or not schema.equals(wanted) or batch.num_rows != entry.rows:
        found = "none" if batch is None else f"{batch.num_rows:,} rows of {schema.types}"
        raise CorruptFileError(f"{path} has {found}, wanted {entry.rows:,} rows of {wanted.types}")
    columns = [batch.column(0), batch.column(1).flatten(), *batch.columns[2:]]
    return [column.to_numpy(zero_copy_only=True) for column in columns]
