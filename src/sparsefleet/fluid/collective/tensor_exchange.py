"""Collective operations on tensors, with gradients, and on tables that every rank holds.

In shapes, R is the number of ranks, N the number of rows per rank or of keys, D the row width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from sparsefleet import _core
from sparsefleet.collective import World
from sparsefleet.collective.reduction import Traffic, gather_rows
from sparsefleet.fluid.collective.collective_role import part_unless_training
from sparsefleet.fluid.collective.ranks import Ranks
from sparsefleet.fluid.framework.sparse_parameter import LocalRows, SparseParameter
from sparsefleet.nn.step_rows import sum_by_key
from sparsefleet.store import Rows, TableSpec
from sparsefleet.store.arrays import Floats, Keys
from sparsefleet.store.row_streams import import_chunks

__all__ = [
    "RowGradient",
    "all_gathered",
    "all_reduced",
    "broadcast_table",
    "broadcast_values",
    "mean_rows",
    "reduce_scattered",
]

Tensor = torch.Tensor

_OPERATIONS = {
    "sum": dist.ReduceOp.SUM,
    "prod": dist.ReduceOp.PRODUCT,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
}


def all_reduced(ranks: Ranks, x: Tensor, kind: str) -> Tensor:
    """Reduce by "sum", "prod", "max" or "min" over all ranks. Only the sum is differentiable."""
    if ranks.size == 1:
        return x
    part_unless_training(ranks)
    if kind == "sum":
        return _apply(_Sum, ranks, x)
    return _reduce(ranks, x, kind)


def all_gathered(ranks: Ranks, x: Tensor) -> Tensor:
    """Gather the rows of all ranks: [N, ...] on each rank -> [R * N, ...]."""
    if ranks.size == 1:
        return x
    part_unless_training(ranks)
    return _apply(_Gather, ranks, x)


def reduce_scattered(ranks: Ranks, x: Tensor) -> Tensor:
    """Return this rank's part of the sum over all ranks: [R * N, ...] -> [N, ...]."""
    if ranks.size == 1:
        return x
    part_unless_training(ranks)
    return _apply(_Scatter, ranks, x)


def broadcast_values(
    ranks: Ranks, values: Sequence[Tensor | SparseParameter], root: int
) -> list[Tensor | SparseParameter]:
    """Return the values of rank `root`, as new tensors."""
    if ranks.size == 1:
        return list(values)
    part_unless_training(ranks)
    made = [
        value.detach().clone()
        if isinstance(value, Tensor)
        else broadcast_table(ranks.world, value, root)
        for value in values
    ]
    ranks.world.broadcast([value for value in made if isinstance(value, Tensor)], root)
    return made


def _apply(kind: type[torch.autograd.Function], ranks: Ranks, x: Tensor) -> Tensor:
    made: Tensor = kind.apply(x, ranks)  # type: ignore[no-untyped-call]
    return made


class _Sum(torch.autograd.Function):
    """Sums over ranks. In the backward pass, each rank gets the sum of all ranks' gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return _reduce(ranks, x, "sum")

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _reduce(ctx.ranks, gradient, "sum"), None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return _gather(ranks, x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _own_part(ctx.ranks, _reduce(ctx.ranks, gradient, "sum")), None


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return _own_part(ranks, _reduce(ranks, x, "sum"))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _gather(ctx.ranks, gradient), None


def _reduce(ranks: Ranks, x: Tensor, kind: str) -> Tensor:
    total = x.detach().clone(memory_format=torch.contiguous_format)
    with ranks.world.naming_lost(f"c_allreduce_{kind}"):
        dist.all_reduce(total, _OPERATIONS[kind], group=ranks.world.group)
    return total


def _gather(ranks: Ranks, x: Tensor) -> Tensor:
    mine = x.detach().contiguous()
    with ranks.world.naming_lost("c_allgather"):
        parts = [torch.empty_like(mine) for _ in range(ranks.size)]
        dist.all_gather(parts, mine, group=ranks.world.group)
    return torch.cat(parts)


def _own_part(ranks: Ranks, x: Tensor) -> Tensor:
    if len(x) % ranks.size:
        raise ValueError(f"{len(x)} rows cannot be divided evenly among {ranks.size} ranks")
    return x.chunk(ranks.size)[ranks.rank].clone()


RowGradient = tuple[Keys, Floats]
"""Distinct keys, uint64[N], and their gradients, float32[N, D]."""


def mean_rows(
    world: World, own: RowGradient | None, dim: int, count: int, traffic: Traffic
) -> RowGradient | None:
    """Return the distinct keys of all ranks, each with the sum of its gradients divided by `count`.

    Must be called by all ranks; a rank without data passes None. Returns None if no rank has
    data.
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
    """Return a copy of rank `root`'s table. New rows in both tables get the same initial values."""
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
    made = LocalRows(
        table.name, (table.height, table.dim), spec.initializer, table.optimizer, seed % 2**64
    )
    import_chunks(made.store, made.name, [rows])
    return made


def _columns(rows: Rows) -> list[np.ndarray[tuple[int, ...], np.dtype[np.generic]]]:
    return [np.ascontiguousarray(column).reshape(-1) for column in rows if column.size]


def _signed(seed: int) -> int:
    return seed - 2**64 if seed >= 2**63 else seed
