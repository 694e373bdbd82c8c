"""Rows of a side as a table that graphs look up in."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from sparsefleet.export.keyed_rows import KeyedRows
from sparsefleet.export.quantization import decode_rows, encode_rows
from sparsefleet.store.arrays import Floats, Keys
from sparsefleet.verify.side import FoundRows

__all__ = ["FetchedRows", "KeyRecorder", "PickedRows", "as_exported"]


class KeyRecorder(KeyedRows):
    """The rows of another table; remembers which were looked up. Not thread-safe."""

    def __init__(self, table: KeyedRows) -> None:
        super().__init__(table.entry, table.initial)
        self._table = table
        self._keys: list[Keys] = [np.empty(0, np.uint64)]

    def find(self, keys: Keys) -> tuple[Floats, NDArray[np.bool_]]:
        self._keys.append(keys)
        return self._table.find(keys)

    @property
    def keys(self) -> Keys:
        """All that were looked up, rising."""
        return np.unique(np.concatenate(self._keys))


class FetchedRows(KeyedRows):
    """Rows that a side fetches when they are looked up."""

    def __init__(self, table: KeyedRows, fetch: Callable[[Keys], FoundRows]) -> None:
        super().__init__(table.entry, table.initial)
        self._fetch = fetch

    def find(self, keys: Keys) -> tuple[Floats, NDArray[np.bool_]]:
        part = self._fetch(keys)
        return np.where(part.found[:, None], part.values, np.float32(0)), part.found


class PickedRows(KeyedRows):
    """Those rows of a stream that are needed, in memory.

    parts: keys, uint64[N], and rows, float32[N, D]; a key comes once.
    """

    def __init__(
        self, table: KeyedRows, needed: Keys, parts: Iterable[tuple[Keys, Floats]]
    ) -> None:
        super().__init__(table.entry, table.initial)
        picked = [(np.empty(0, np.uint64), np.empty((0, table.entry.dim), np.float32))]
        for keys, rows in parts:
            wanted = np.isin(keys, needed)
            picked.append((keys[wanted], rows[wanted]))
        keys = np.concatenate([part for part, _ in picked])
        order = np.argsort(keys)
        self._keys: Keys = keys[order]
        self._rows: Floats = np.concatenate([part for _, part in picked])[order]

    def find(self, keys: Keys) -> tuple[Floats, NDArray[np.bool_]]:
        rows = np.zeros((len(keys), self.entry.dim), np.float32)
        known = np.isin(keys, self._keys)
        rows[known] = self._rows[np.searchsorted(self._keys, keys[known])]
        return rows, known


def as_exported(table: KeyedRows, keys: Keys, values: Floats) -> Floats:
    """How rows of training, float32[N, D], read once they are exported in the table's format."""
    entry = table.entry
    if entry.format == "float32":
        return values
    return decode_rows(encode_rows(entry.name, keys, values, entry.format))
