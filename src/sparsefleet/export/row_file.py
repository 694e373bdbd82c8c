"""Rows of an exported table, mapped into memory and found by their keys.

Letters: N rows, D row width, U distinct keys, n ids.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparsefleet import _core
from sparsefleet.errors import CorruptFileError, FeedError
from sparsefleet.export.manifest import TableEntry
from sparsefleet.export.quantization import EncodedRows, decode_rows
from sparsefleet.export.row_layout import row_schema
from sparsefleet.store import (
    Constant,
    Initializer,
    LocalStore,
    Normal,
    TableSpec,
    TruncatedNormal,
    Uniform,
)
from sparsefleet.store.arrays import Floats, Keys

__all__ = ["RowFile", "open_tables"]

_INITIALIZERS: dict[str, Any] = {
    "normal": Normal,
    "truncated_normal": TruncatedNormal,
    "uniform": Uniform,
}
_KEY_MASK = 2**64 - 1


class RowFile:
    """The rows of one table. Opening it reads no rows; a lookup reads those it needs.

    Thread-safe.
    """

    def __init__(self, path: Path, entry: TableEntry) -> None:
        self.entry = entry
        columns = _map_columns(path, entry)
        self._keys: Keys = columns[0]
        self._values: NDArray[Any] = columns[1].reshape(entry.rows, entry.dim)
        self._scales: Floats | None = columns[2] if len(columns) > 2 else None
        self._initial: LocalStore | None = None

    def look_up(
        self,
        ids: NDArray[np.int64],
        *,
        padding_id: int | None = None,
        unknown: Literal["zeros", "initial"] = "zeros",
    ) -> Floats:
        """The rows of ids of any shape: float32[*ids.shape, D].

        Each distinct id is looked for once, by halving. Padding reads as zeros.
        """
        if ids.dtype != np.int64:
            raise FeedError(f"table '{self.entry.name}': ids must be int64, got {ids.dtype}")
        flat = np.ascontiguousarray(ids).reshape(-1).view(np.uint64)
        padding = [] if padding_id is None else [(0, len(flat), padding_id & _KEY_MASK)]
        keys, inverse = _core.unique(flat, padding)
        rows = np.empty((len(flat), self.entry.dim), np.float32)
        _core.gather_rows(self.rows_of(keys, unknown), inverse, rows)
        return rows.reshape(*ids.shape, self.entry.dim)

    def rows_of(self, keys: Keys, unknown: Literal["zeros", "initial"]) -> Floats:
        """float32[U, D] of distinct keys, uint64[U]."""
        order = np.argsort(keys)  # in order, the search and the rows are near what was just read
        places = np.searchsorted(self._keys, keys[order])
        within = places < len(self._keys)
        order, places = order[within], places[within]
        found = self._keys[places] == keys[order]
        order, places = order[found], places[found]
        if len(order) == len(keys):
            rows = np.empty((len(keys), self.entry.dim), np.float32)
        elif unknown == "initial":
            rows = self._initial_values(keys)
        else:
            rows = np.zeros((len(keys), self.entry.dim), np.float32)
        scales = None if self._scales is None else self._scales[places]
        rows[order] = decode_rows(EncodedRows(self._values[places], scales))
        return rows

    def known(self, keys: Keys) -> NDArray[np.bool_]:
        """Which keys, uint64[N] in any order, have a row: bool[N]."""
        if not len(self._keys):
            return np.zeros(len(keys), np.bool_)
        places = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        found: NDArray[np.bool_] = self._keys[places] == keys
        return found

    def _initial_values(self, keys: Keys) -> Floats:
        """What rows of these keys would start with: float32[U, D]."""
        store = self._initial
        if store is None:
            store = LocalStore()
            store.define(
                TableSpec(
                    name=self.entry.name,
                    dim=self.entry.dim,
                    seed=self.entry.initial.seed,
                    initializer=_initializer(self.entry),
                )
            )
            self._initial = store  # two threads may make one each: they are alike
        return store.pull(self.entry.name, keys, train=False, unknown="initial")


def open_tables(directory: Path, entries: Iterable[TableEntry]) -> dict[str, RowFile]:
    """The rows of all tables of an export, by name."""
    return {entry.name: RowFile(directory / entry.file, entry) for entry in entries}


def _initializer(entry: TableEntry) -> Initializer:
    initial = entry.initial
    if initial.kind == "constant":
        return Constant(initial.a)
    made: Initializer = _INITIALIZERS[initial.kind](initial.a, initial.b)
    return made


def _map_columns(path: Path, entry: TableEntry) -> list[NDArray[Any]]:
    """Keys, flat values and, in int8, scales, as views of the mapped file."""
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
