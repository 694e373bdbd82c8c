"""A table in which distinct keys are found; ids in any shape and number are looked up by them.

Letters: U distinct keys, N keys, D row width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sparsefleet import _core
from sparsefleet.errors import FeedError
from sparsefleet.export.initial_rows import InitialRows
from sparsefleet.export.manifest import TableEntry
from sparsefleet.store.arrays import Floats, Keys

__all__ = ["KeyedRows"]

_KEY_MASK = 2**64 - 1


class KeyedRows(ABC):
    """A `RowSource` for whoever can `find` keys.

    entry: of the table in the manifest: its width, and what rows start with.
    """

    def __init__(self, entry: TableEntry, initial: InitialRows | None = None) -> None:
        self.entry = entry
        self.initial = initial or InitialRows(entry)
        """What rows would start with; shared by all that read the same table."""

    @abstractmethod
    def find(self, keys: Keys) -> tuple[Floats, NDArray[np.bool_]]:
        """Rows of distinct keys, uint64[U]: float32[U, D], the caller's own, zeros where there is
        no row; and which keys have one, bool[U]."""

    def look_up(
        self,
        ids: NDArray[np.int64],
        *,
        padding_id: int | None = None,
        unknown: Literal["zeros", "initial"] = "zeros",
    ) -> Floats:
        """The rows of ids of any shape: float32[*ids.shape, D].

        Each distinct id is looked for once. Padding reads as zeros.
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
        rows, known = self.find(keys)
        if unknown == "initial" and not known.all():
            rows[~known] = self.initial.of(keys[~known])
        return rows

    def known(self, keys: Keys) -> NDArray[np.bool_]:
        """Which keys, uint64[N] in any order, have a row: bool[N]."""
        distinct, inverse = np.unique(keys, return_inverse=True)
        found: NDArray[np.bool_] = self.find(distinct)[1][inverse]
        return found
