"""Tables that every rank has a full copy of.

Letters: N keys, D row width.
"""

from __future__ import annotations

import numpy as np
import torch

from sparsefleet import _core
from sparsefleet.collective import World
from sparsefleet.collective.reduction import Traffic, gather_rows
from sparsefleet.fluid.framework.sparse_parameter import SparseParameter
from sparsefleet.nn.step_rows import sum_by_key
from sparsefleet.store import Rows, TableSpec
from sparsefleet.store.arrays import Floats, Keys
from sparsefleet.store.row_streams import import_chunks

__all__ = ["RowGradient", "broadcast_table", "mean_rows"]

RowGradient = tuple[Keys, Floats]
"""Keys uint64[N], each once, and gradients float32[N, D]."""


def mean_rows(
    world: World, own: RowGradient | None, dim: int, count: int, traffic: Traffic
) -> RowGradient | None:
    """Return each key of any rank once, with the sum of its gradients divided by `count`.

    All ranks call it; a rank without data passes None. Returns None if no rank has any.
    """
    keys, values = own or (np.empty(0, np.uint64), np.empty((0, dim), np.float32))
    all_keys, all_values = gather_rows(
        world,
        torch.from_numpy(keys.view(np.int64)),
        torch.from_numpy(np.asarray(values)),
        traffic=traffic,
    )
    if not len(all_keys):
        return None
    distinct, inverse = _core.unique(all_keys.numpy().view(np.uint64))
    distinct, sums = sum_by_key(distinct, inverse, all_values.numpy())
    sums /= np.float32(count)
    return distinct, sums


def broadcast_table(world: World, table: SparseParameter, root: int) -> SparseParameter:
    """Return a copy of the table of rank `root`; new rows get the same initial values as there."""
    mine = table.rows()
    spec = table.store.specs[table.name]
    assert isinstance(spec, TableSpec)
    shape = torch.tensor(
        [len(mine.keys), mine.state.shape[1], mine.counters.shape[1], _signed(spec.seed)],
        device="cpu",
    )
    world.broadcast([shape], root)
    count, states, counters, seed = shape.tolist()
    if world.rank == root:
        rows = mine
    else:
        rows = Rows(
            np.empty(count, np.uint64),
            np.empty((count, table.dim), np.float32),
            np.empty((count, states), np.float32),
            np.empty((count, counters), np.uint32),
        )
    world.broadcast([torch.from_numpy(column.view(np.uint8)) for column in _columns(rows)], root)
    if world.rank == root:
        return table
    made = SparseParameter(
        table.name, (table.height, table.dim), spec.initializer, table.optimizer, seed % 2**64
    )
    import_chunks(made.store, made.name, [rows])
    return made


def _columns(rows: Rows) -> list[np.ndarray[tuple[int, ...], np.dtype[np.generic]]]:
    return [np.ascontiguousarray(column).reshape(-1) for column in rows if column.size]


def _signed(seed: int) -> int:
    return seed - 2**64 if seed >= 2**63 else seed
