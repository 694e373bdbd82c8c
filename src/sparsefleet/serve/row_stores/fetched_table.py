"""A table behind a network, of which a prediction has fetched what it will look up.

Letters: U distinct keys, D row width.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sparsefleet.export.keyed_rows import KeyedRows
from sparsefleet.store.arrays import Floats, Keys

__all__ = ["FetchedTable", "distinct_keys"]


def distinct_keys(ids: NDArray[np.int64]) -> Keys:
    """The keys of ids of any shape, rising: uint64[U].

    >>> distinct_keys(np.array([[5, 3], [3, 5]]))
    array([3, 5], dtype=uint64)
    """
    return np.unique(np.ascontiguousarray(ids).reshape(-1).view(np.uint64))


class FetchedTable(KeyedRows):
    """Rows that are here; others are found in the table itself.

    keys: uint64[U], rising; rows: float32[U, D]; known: bool[U].
    """

    def __init__(
        self, table: KeyedRows, keys: Keys, rows: Floats, known: NDArray[np.bool_]
    ) -> None:
        super().__init__(table.entry, table.initial)
        self._table = table
        self._keys = keys
        self._rows = rows
        self._known = known

    def find(self, keys: Keys) -> tuple[Floats, NDArray[np.bool_]]:
        if not len(self._keys):
            return self._table.find(keys)
        places = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        here = self._keys[places] == keys
        rows, known = self._rows[places], self._known[places]
        if not here.all():
            rows[~here], known[~here] = self._table.find(keys[~here])
        return rows, known
