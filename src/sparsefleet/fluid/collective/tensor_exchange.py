"""Collective operations on tensors, with gradients.

Letters: R ranks, N rows per rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from sparsefleet.fluid.collective.collective_role import part_unless_training
from sparsefleet.fluid.collective.ranks import Ranks
from sparsefleet.fluid.collective.table_exchange import broadcast_table
from sparsefleet.fluid.framework.sparse_parameter import SparseParameter

__all__ = ["all_gathered", "all_reduced", "broadcast_values", "reduce_scattered"]

Tensor = torch.Tensor

_OPERATIONS = {
    "sum": dist.ReduceOp.SUM,
    "prod": dist.ReduceOp.PRODUCT,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
}


def all_reduced(ranks: Ranks, x: Tensor, kind: str) -> Tensor:
    """Reduce by "sum", "prod", "max" or "min" over all ranks; only the sum has gradients."""
    if ranks.size == 1:
        return x
    part_unless_training(ranks)
    if kind == "sum":
        return _apply(_Sum, ranks, x)
    return _reduce(ranks, x, kind)


def all_gathered(ranks: Ranks, x: Tensor) -> Tensor:
    """Gather the rows of all ranks, which have the same number of rows: [R * N, ...]."""
    if ranks.size == 1:
        return x
    part_unless_training(ranks)
    return _apply(_Gather, ranks, x)


def reduce_scattered(ranks: Ranks, x: Tensor) -> Tensor:
    """Return this rank's part of the sum over all: [R * N, ...] -> [N, ...]."""
    if ranks.size == 1:
        return x
    part_unless_training(ranks)
    return _apply(_Scatter, ranks, x)


def broadcast_values(
    ranks: Ranks, values: Sequence[Tensor | SparseParameter], root: int
) -> list[Tensor | SparseParameter]:
    """Return the values of rank `root` as new objects."""
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
    """Sums over ranks; each rank's gradient is the sum of all gradients."""

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
