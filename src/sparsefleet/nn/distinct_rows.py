"""The rows of a lookup as they were pulled: each distinct one once.

Letters: N ids, U distinct ones, D row width.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
import torch

from sparsefleet import _core
from sparsefleet.nn.lookup import Inverse
from sparsefleet.nn.pulled_rows import TableRows
from sparsefleet.store.arrays import Floats, Keys


class DistinctRows(NamedTuple):
    """Rows for an operator that reads them in place; nobody may write into them."""

    rows: torch.Tensor
    """float32[U, D], which autograd knows where the lookup takes part in training"""
    array: Floats
    """The memory of ``rows``."""
    places: Inverse
    """uint32[N], the row of each id; ``_core.PADDING_PLACE`` for padding"""


def distinct_rows(rows: TableRows, index: int) -> DistinctRows:
    """The rows of one lookup, without autograd."""
    array = _array_of(rows)
    return DistinctRows(torch.from_numpy(array), array, rows.places_of(index))


class DistinctLeaf:
    """The distinct rows of a table's lookups as one tensor that autograd knows."""

    __slots__ = ("_array", "_made", "_rows", "_values", "table")

    def __init__(self, rows: TableRows) -> None:
        self.table = rows.table
        self._rows = rows
        self._array = _array_of(rows)
        self._values = torch.from_numpy(self._array).requires_grad_()
        self._made: set[int] = set()

    @property
    def has_gradient(self) -> bool:
        return self._values.grad is not None

    def take(self, indexes: Collection[int]) -> DistinctRows:
        """The rows of a lookup, given where it is among the table's: several are of equal ids."""
        self._made.update(indexes)
        return DistinctRows(self._values, self._array, self._rows.places_of(min(indexes)))

    def gradient(self) -> tuple[Keys, Floats] | None:
        """Unique keys and summed gradients of the lookups that were made."""
        grad = self._values.grad
        if grad is None:
            return None
        sums = np.ascontiguousarray(grad.numpy())
        if len(self._made) == len(self._rows.lookups):
            return self._rows.keys, sums
        places = np.unique(np.concatenate([self._rows.places_of(i) for i in self._made]))
        places = places[places != _core.PADDING_PLACE]
        return self._rows.keys[places], sums[places]


def _array_of(rows: TableRows) -> Floats:
    return np.empty((0, rows.dim), np.float32) if rows.rows is None else rows.rows
