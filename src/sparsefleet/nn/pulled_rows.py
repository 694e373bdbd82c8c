"""The rows of one batch: every key once, in one request.

Letters: N ids of all lookups of a table, U distinct ones, D row width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import torch

from sparsefleet import _core
from sparsefleet.nn.lookup import Inverse, Lookup, unique_keys
from sparsefleet.store.arrays import Floats, Keys
from sparsefleet.store.store import Unknown


class Pull(Protocol):
    """Brings rows: table -> keys uint64[U] in, table -> rows float32[U, D] out."""

    def __call__(
        self, keys: Mapping[str, Keys], /, *, train: bool = True, unknown: Unknown = "zeros"
    ) -> Mapping[str, Floats]: ...


class TableRows:
    """Rows of all lookups of one table."""

    __slots__ = ("dim", "inverse", "keys", "lookups", "rows", "sizes", "table")

    def __init__(self, lookups: list[Lookup]) -> None:
        self.table = lookups[0].table
        self.dim = lookups[0].dim
        self.lookups = lookups
        self.sizes = [lookup.ids.numel() for lookup in lookups]
        """Ids of each lookup."""
        keys, inverse = unique_keys(lookups)
        self.keys: Keys = keys
        """uint64[U], each key once"""
        self.inverse: Inverse = inverse
        """uint32[N], the place in ``keys`` of each id; ``_core.PADDING_PLACE`` for padding"""
        self.rows: Floats | None = None
        """float32[U, D], once pulled; None where all is padding"""

    def gather(self) -> torch.Tensor:
        """The rows of all ids: float32[N, D], zeros for padding."""
        return gather(self.rows, self.inverse, self.dim)

    def gather_one(self, index: int) -> torch.Tensor:
        """The rows of the ids of one lookup."""
        return gather(self.rows, self.places_of(index), self.dim)

    def places_of(self, index: int) -> Inverse:
        """The part of ``inverse`` that is of one lookup."""
        begin = sum(self.sizes[:index])
        return self.inverse[begin : begin + self.sizes[index]]


class PulledRows:
    """Unique keys, inverse and rows of the lookups of one batch, per table. See `pull_rows`."""

    __slots__ = ("tables",)

    def __init__(self, tables: dict[str, TableRows]) -> None:
        self.tables = tables

    def wanted(self) -> dict[str, Keys]:
        """The keys whose rows are not here yet, by table."""
        return {
            table: rows.keys
            for table, rows in self.tables.items()
            if rows.rows is None and len(rows.keys)  # all padding: nothing to ask for
        }


def gather(rows: Floats | None, inverse: Inverse, dim: int) -> torch.Tensor:
    """``rows[inverse]``: float32[N, D], zeros for padding."""
    if rows is None:
        return torch.from_numpy(np.zeros((len(inverse), dim), np.float32))
    out = np.empty((len(inverse), dim), np.float32)
    _core.gather_rows(rows, inverse, out)
    return torch.from_numpy(out)


def plan_rows(lookups: Sequence[Lookup]) -> PulledRows:
    """The distinct keys of all lookups, by table; their rows are for the caller to bring."""
    by_table: dict[str, list[Lookup]] = {}
    for lookup in lookups:
        by_table.setdefault(lookup.table, []).append(lookup)
    return PulledRows({table: TableRows(group) for table, group in by_table.items()})


def pull_rows(lookups: Sequence[Lookup], pull: Pull, *, train: bool = True) -> PulledRows:
    """The rows of all lookups by one call of ``pull``, with every key of a table once.

    ``train=False`` creates no rows; tables whose modules differ in what they make of unknown
    keys are then pulled by a call each. May run ahead, in another thread than the step's.

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
