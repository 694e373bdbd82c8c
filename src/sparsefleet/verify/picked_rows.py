"""Rows picked from a side that has them only as a stream, for the keys that examples need."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sparsefleet.export.quantization import decode_rows, encode_rows
from sparsefleet.export.row_file import RowFile
from sparsefleet.store.arrays import Floats, Keys
from sparsefleet.verify.side import FoundRows

__all__ = ["KeyRecorder", "PickedRows", "as_exported"]

_KEY_MASK = 2**64 - 1


class KeyRecorder:
    """The rows of an export; remembers which were looked up. Not thread-safe."""

    def __init__(self, file: RowFile) -> None:
        self._file = file
        self._keys: list[Keys] = []

    def look_up(
        self,
        ids: NDArray[np.int64],
        *,
        padding_id: int | None = None,
        unknown: Literal["zeros", "initial"] = "zeros",
    ) -> Floats:
        self._keys.append(np.unique(ids.reshape(-1).view(np.uint64)))
        return self._file.look_up(ids, padding_id=padding_id, unknown=unknown)

    def known(self, keys: Keys) -> NDArray[np.bool_]:
        return self._file.known(keys)

    @property
    def keys(self) -> Keys:
        """All that were looked up, rising."""
        return np.unique(np.concatenate([np.empty(0, np.uint64), *self._keys]))


class PickedRows:
    """Rows in memory, of one table that `file` describes.

    fetch: the rows of distinct keys, uint64[N].
    """

    def __init__(self, file: RowFile, fetch: Callable[[Keys], FoundRows]) -> None:
        self._file = file
        self._fetch = fetch

    def look_up(
        self,
        ids: NDArray[np.int64],
        *,
        padding_id: int | None = None,
        unknown: Literal["zeros", "initial"] = "zeros",
    ) -> Floats:
        """float32[*ids.shape, D]"""
        keys, inverse = np.unique(ids.reshape(-1).view(np.uint64), return_inverse=True)
        part = self._fetch(keys)
        if unknown == "initial" and len(keys):
            rows = self._file.initial_values(keys)
        else:
            rows = np.zeros((len(keys), self._file.entry.dim), np.float32)
        rows[part.found] = part.values[part.found]
        if padding_id is not None:
            rows[keys == np.uint64(padding_id & _KEY_MASK)] = 0
        return rows[inverse.reshape(-1)].reshape(*ids.shape, self._file.entry.dim)

    def known(self, keys: Keys) -> NDArray[np.bool_]:
        return self._fetch(keys).found

    @classmethod
    def of(cls, file: RowFile, rows: Mapping[int, Floats]) -> PickedRows:
        """Rows by key, float32[D] each."""

        def fetch(keys: Keys) -> FoundRows:
            found = np.array([int(key) in rows for key in keys], np.bool_)
            values = np.zeros((len(keys), file.entry.dim), np.float32)
            for index in np.flatnonzero(found):
                values[index] = rows[int(keys[index])]
            return FoundRows(keys, found, values)

        return cls(file, fetch)


def as_exported(file: RowFile, keys: Keys, values: Floats) -> Floats:
    """How rows of training, float32[N, D], read once they are exported in the format of `file`."""
    entry = file.entry
    if entry.format == "float32":
        return values
    return decode_rows(encode_rows(entry.name, keys, values, entry.format))
