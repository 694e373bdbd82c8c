"""A base class for tables that look up ids of any shape by finding each distinct key once.

In shapes, U is the number of distinct keys, N the number of keys, D the row width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sparsefleet import _core
from sparsefleet.errors import FeedError
from sparsefleet.serving.export.manifest import ExportedTable
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

__all__ = ["KeyedRows"]

_KEY_MASK = 2**64 - 1


class KeyedRows(ABC):
    """A base class that implements `RowSource` with the `find` method of its subclasses.

    entry: the table's manifest entry, with its width and initial values.
    """

    def __init__(self, entry: ExportedTable, initial: _InitialRows | None = None) -> None:
        self.entry = entry
        self.initial = initial or _InitialRows(entry)
        """Initial values of rows, shared by all readers of the same table."""

    @abstractmethod
    def find(self, keys: Keys) -> tuple[Floats, NDArray[np.bool_]]:
        """Find the rows of distinct keys, uint64[U].

        Returns the rows, float32[U, D], owned by the caller, with zeros for a key without a row,
        and whether each key has a row, bool[U].
        """

    def look_up(
        self,
        ids: NDArray[np.int64],
        *,
        padding_id: int | None = None,
        unknown: Literal["zeros", "initial"] = "zeros",
    ) -> Floats:
        """Return the rows for ids of any shape: float32[*ids.shape, D].

        Each distinct id is looked up once. The row of a padding id is all zeros.
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
        """Return the rows of distinct keys, uint64[U], as float32[U, D]."""
        rows, known = self.find(keys)
        if unknown == "initial" and not known.all():
            rows[~known] = self.initial.of(keys[~known])
        return rows

    def known(self, keys: Keys) -> NDArray[np.bool_]:
        """Return whether each key has a row: uint64[N] in any order -> bool[N]."""
        distinct, inverse = np.unique(keys, return_inverse=True)
        found: NDArray[np.bool_] = self.find(distinct)[1][inverse]
        return found


_INITIALIZERS: dict[str, Any] = {
    "normal": Normal,
    "truncated_normal": TruncatedNormal,
    "uniform": Uniform,
}


class _InitialRows:
    """A table's initializer, used for requested keys that have no row. Thread-safe."""

    def __init__(self, entry: ExportedTable) -> None:
        self._entry = entry
        self._store: LocalStore | None = None

    def of(self, keys: Keys) -> Floats:
        """Return the initial rows of these keys, uint64[U], as float32[U, D]."""
        entry, store = self._entry, self._store
        if store is None:
            store = LocalStore()
            store.define(
                TableSpec(
                    name=entry.name,
                    dim=entry.dim,
                    seed=entry.initial.seed,
                    initializer=_initializer(entry),
                    row_dtype=entry.initial.row_dtype,
                )
            )
            self._store = (
                store  # two threads may each create an initializer, but both are identical
            )
        return store.pull(entry.name, keys, train=False, unknown="initial")


def _initializer(entry: ExportedTable) -> Initializer:
    initial = entry.initial
    if initial.kind == "constant":
        return Constant(initial.a)
    made: Initializer = _INITIALIZERS[initial.kind](initial.a, initial.b)
    return made
