"""Row gradients of all ranks, on every rank; for ranks that hold the tables themselves.

Letters: N keys, D row width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from sparsefleet.collective import Traffic, World, gather_rows
from sparsefleet.nn.step_rows import merge_gradients
from sparsefleet.store import TableSpec
from sparsefleet.store.arrays import Floats, Keys

RowGradients = dict[str, tuple[Keys, Floats]]
"""Table to keys uint64[N], each once, and gradients float32[N, D]."""


class GatheredRows:
    """Brings row gradients of all ranks together. All ranks make the same calls."""

    def __init__(self, world: World, tables: Mapping[str, TableSpec], traffic: Traffic) -> None:
        self._world = world
        self._tables = tables
        self._traffic = traffic

    def sum(self, own: RowGradients) -> RowGradients:
        """Each key of any rank once, with the sum of what ranks give for it, by table.

        Sums are made in the order of ranks: the result has the same bits everywhere.
        """
        found = {}
        for table in sorted(self._tables):
            keys, gradients = own.get(table) or self._nothing(table)
            all_keys, all_gradients = gather_rows(
                self._world,
                torch.from_numpy(keys.view(np.int64)),
                torch.from_numpy(gradients),
                traffic=self._traffic,
            )
            if len(all_keys):
                gathered = (all_keys.numpy().view(np.uint64), all_gradients.numpy())
                found[table] = gathered if self._world.size == 1 else _every_key_once(gathered)
        return found

    def _nothing(self, table: str) -> tuple[Keys, Floats]:
        return np.empty(0, np.uint64), np.empty((0, self._tables[table].dim), np.float32)


def merged(parts: Sequence[RowGradients]) -> RowGradients:
    """Every key of each table once, with the sum of its gradients.

    >>> one = (np.array([7], np.uint64), np.array([[1.0]], np.float32))
    >>> merged([{"ads": one}, {"ads": one}])
    {'ads': (array([7], dtype=uint64), array([[2.]], dtype=float32))}
    """
    if len(parts) == 1:
        return parts[0]
    tables = dict.fromkeys(table for part in parts for table in part)
    return {
        table: merge_gradients([part[table] for part in parts if table in part]) for table in tables
    }


def divided(rows: RowGradients, by: float) -> RowGradients:
    """All gradients divided, in place where they may be written."""
    if by == 1:
        return rows
    return {
        table: (keys, np.divide(g, np.float32(by), out=g if g.flags.writeable else None))
        for table, (keys, g) in rows.items()
    }


def _every_key_once(gathered: tuple[Keys, Floats]) -> tuple[Keys, Floats]:
    # Two parts are merged by key even where the second has none.
    return merge_gradients([gathered, (gathered[0][:0], gathered[1][:0])])
