"""The rows of one batch, with every key pulled once in a single request.

In shapes, N is the number of ids in all lookups of a table, U the number of distinct ids, and D the
row width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch

from sparsefleet import _core
from sparsefleet.monitor import LOOKUPS
from sparsefleet.nn.lookup import Inverse, Lookup, TableKeys, distinct_keys
from sparsefleet.store.arrays import Floats, Keys
from sparsefleet.store.store import Unknown


class Pull(Protocol):
    """Fetches rows: takes keys uint64[U] by table and returns rows float32[U, D] by table."""

    def __call__(
        self, keys: Mapping[str, Keys], /, *, train: bool = True, unknown: Unknown = "zeros"
    ) -> Mapping[str, Floats]: ...


class TableRows:
    """The rows of all lookups in one table."""

    __slots__ = ("dim", "inverse", "keys", "lookups", "rows", "sizes", "table")

    def __init__(self, lookups: list[Lookup], found: TableKeys) -> None:
        self.table = lookups[0].table
        self.dim = lookups[0].dim
        self.lookups = lookups
        self.keys, self.inverse, self.sizes = found
        self.rows: Floats | None = None
        """The distinct rows, float32[U, D], after the pull; None if every id is padding."""

    def hottest(self) -> float:
        """Return the most frequent id's share of all looked-up ids."""
        places = self.inverse[self.inverse != _core.PADDING_PLACE]
        return float(np.bincount(places).max() / len(places)) if len(places) else 0.0

    def gather(self) -> torch.Tensor:
        """Return the rows of all ids: float32[N, D], zeros for padding."""
        return gather(self.rows, self.inverse, self.dim)

    def gather_one(self, index: int) -> torch.Tensor:
        """Return the rows of one lookup's ids."""
        return gather(self.rows, self.places_of(index), self.dim)

    def places_of(self, index: int) -> Inverse:
        """Return the part of ``inverse`` that belongs to one lookup."""
        if len(self.sizes) == 1:
            return self.inverse
        begin = sum(self.sizes[:index])
        return self.inverse[begin : begin + self.sizes[index]]


class PulledRows:
    """Distinct keys, inverse and rows of one batch's lookups, per table. See `pull_rows`."""

    __slots__ = ("tables",)

    def __init__(self, tables: dict[str, TableRows]) -> None:
        self.tables = tables

    def wanted(self) -> dict[str, Keys]:
        """Return the keys whose rows have not been fetched yet, by table."""
        return {
            table: rows.keys
            for table, rows in self.tables.items()
            if rows.rows is None and len(rows.keys)  # all padding, so there is nothing to request
        }


def gather(rows: Floats | None, inverse: Inverse, dim: int) -> torch.Tensor:
    """Return ``rows[inverse]``: float32[N, D], zeros for padding."""
    if rows is None:
        return torch.from_numpy(np.zeros((len(inverse), dim), np.float32))
    out = np.empty((len(inverse), dim), np.float32)
    _core.gather_rows(rows, inverse, out)
    return torch.from_numpy(out)


def plan_rows(lookups: Sequence[Lookup]) -> PulledRows:
    """Return the distinct keys of all lookups by table, without rows; the caller fetches rows."""
    by_table: dict[str, list[Lookup]] = {}
    for lookup in lookups:
        by_table.setdefault(lookup.table, []).append(lookup)
    found = distinct_keys(list(by_table.values()))
    tables = {
        table: TableRows(group, keys)
        for (table, group), keys in zip(by_table.items(), found, strict=True)
    }
    LOOKUPS.add(
        (table, len(rows.inverse), len(rows.keys), rows.hottest) for table, rows in tables.items()
    )
    return PulledRows(tables)


def pull_rows(lookups: Sequence[Lookup], pull: Pull, *, train: bool = True) -> PulledRows:
    """Fetch the rows of all lookups with one call to ``pull``; each key of a table is sent once.

    With ``train=False``, no rows are created, and there is one call for each value of `unknown`
    among the modules. May run ahead of the step, on another thread.

    >>> from sparsefleet.store import LocalStore, TableSpec
    >>> store = LocalStore()
    >>> store.define(TableSpec(name="ads", dim=2))
    >>> ids = Lookup("ads", 2, torch.tensor([7, 9, 7]))
    >>> pulled = pull_rows([ids], lambda keys, **how: store.pull_many(keys, **how)[0])
    >>> pulled.tables["ads"].keys, pulled.tables["ads"].gather().shape
    (array([7, 9], dtype=uint64), torch.Size([3, 2]))
    """
    pulled = plan_rows(lookups)
    calls: dict[Unknown, dict[str, Keys]] = {}
    for table, keys in pulled.wanted().items():
        unknown: Unknown = "zeros" if train else pulled.tables[table].lookups[0].unknown
        calls.setdefault(unknown, {})[table] = keys
    for unknown, wanted in calls.items():
        found = pull(wanted) if train else pull(wanted, train=False, unknown=unknown)
        for table in wanted:
            pulled.tables[table].rows = found[table]
    return pulled


class DistinctRows(NamedTuple):
    """Rows for an operator that reads them in place; read-only."""

    array: Floats
    """The rows, float32[U, D]."""
    places: Inverse
    """uint32[N], the row index of each id; ``_core.PADDING_PLACE`` for padding."""
    leaf: DistinctLeaf | None
    """Receives the gradients from the operator; None if the rows are not trained."""


def distinct_rows(rows: TableRows, index: int) -> DistinctRows:
    """Return the rows of one lookup, for reading only; they get no gradients."""
    return DistinctRows(_array_of(rows), rows.places_of(index), None)


class DistinctLeaf:
    """The distinct rows of a table's lookups, and the sums of their gradients."""

    __slots__ = ("_array", "_made", "_rows", "_sums", "table")

    def __init__(self, rows: TableRows) -> None:
        self.table = rows.table
        self._rows = rows
        self._array = _array_of(rows)
        self._sums: Floats | None = None
        self._made: set[int] = set()

    @property
    def has_gradient(self) -> bool:
        return self._sums is not None

    def take(self, indexes: Sequence[int]) -> DistinctRows:
        """Return the rows of lookups that have the same ids.

        indexes: the positions of these lookups among the table's planned lookups.
        """
        self._made.update(indexes)
        return DistinctRows(self._array, self._rows.places_of(indexes[0]), self)

    def add(self, sums: Floats) -> None:
        """Add gradients float32[U, D] for the rows.

        The leaf keeps a reference to the first array and adds to it, so do not reuse the array.
        """
        if self._sums is None:
            self._sums = sums
        else:
            self._sums += sums

    def gradient(self) -> tuple[Keys, Floats] | None:
        """Return the distinct keys of the lookups taken, and their summed gradients, if any."""
        sums = self._sums
        if sums is None:
            return None
        if len(self._made) == len(self._rows.lookups):
            return self._rows.keys, sums
        places = np.unique(np.concatenate([self._rows.places_of(i) for i in self._made]))
        places = places[places != _core.PADDING_PLACE]
        return self._rows.keys[places], sums[places]


def graph_input() -> torch.Tensor:
    """Return an empty tensor that makes autograd call an operator's backward pass.

    That operator works on `DistinctRows` and passes its gradients to the leaves itself.
    """
    return torch.empty(0, requires_grad=True)


def _array_of(rows: TableRows) -> Floats:
    return np.empty((0, rows.dim), np.float32) if rows.rows is None else rows.rows
