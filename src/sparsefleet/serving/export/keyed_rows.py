"""Where an engine gets rows and dense parameters, and a base class for tables of rows.

In shapes, U is the number of distinct keys, N the number of keys, D the row width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from sparsefleet import _core
from sparsefleet.errors import CheckpointMismatchError, FeedError
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

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "CONSTANT_PREFIX",
    "KeyedRows",
    "MODEL_PREFIX",
    "RowSource",
    "Tables",
    "dense_tensors",
    "require_same_shapes",
]


class RowSource(Protocol):
    """The rows of one table in one consistent snapshot. Thread-safe."""

    def look_up(
        self,
        ids: NDArray[np.int64],
        *,
        padding_id: int | None = None,
        unknown: Literal["zeros", "initial"] = "zeros",
    ) -> Floats:
        """Return the rows for ids of any shape: float32[*ids.shape, D].

        A padding id yields zeros; an id without a row yields zeros or its initial row, depending on
        the lookup. If rows are unavailable, raises StoreUnavailableError instead of returning
        zeros.
        """

    def known(self, keys: Keys) -> NDArray[np.bool_]:
        """Return whether each key has a row, bool[N]. Raises the same errors as `look_up`."""


Tables = Mapping[str, RowSource]
"""The rows of all of a model's tables, by name."""


MODEL_PREFIX = "model."
"""Prefix that the graph adds to the names of the parameters and persistent buffers of the model."""

CONSTANT_PREFIX = "constant."
"""Prefix of the graph's other tensors, such as non-persistent buffers, which never change."""


def dense_tensors(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a graph's parameters and persistent buffers by their model names."""
    return {
        name.removeprefix(MODEL_PREFIX): tensor
        for name, tensor in state.items()
        if not name.startswith(CONSTANT_PREFIX)
    }


def require_same_shapes(
    wanted: Mapping[str, tuple[int, ...]], found: Mapping[str, NDArray[Any]]
) -> None:
    """Raise CheckpointMismatchError unless every expected parameter is present with its shape."""
    for name, shape in wanted.items():
        array = found.get(name)
        if array is None or array.shape != shape:
            there = (
                "no parameter with that name"
                if array is None
                else f"one of shape {list(array.shape)}"
            )
            raise CheckpointMismatchError(
                f"dense parameters belong to a different model: expected '{name}' of shape "
                f"{list(shape)}, found {there}"
            )


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
