"""Sparse gradients of all ranks on every rank: they have no common shape to be summed in.

Letters: N rows of a rank, M rows of all ranks, D width of a row.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from sparsefleet.collective.traffic import Traffic, Transfer
from sparsefleet.collective.world import World
from sparsefleet.errors import ShapeError

__all__ = ["gather_gradient", "gather_rows"]


def gather_rows(
    world: World, keys: torch.Tensor, rows: torch.Tensor, *, traffic: Traffic | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys [M] and rows [M, D] of all ranks, one rank after the other; equal on all of them.

    All ranks must call it; N may differ and be 0. A key may come from several ranks: to add up
    its rows, and to divide by the ranks, is the caller's part.

    >>> gather_rows(World.join(), torch.tensor([7]), torch.ones(1, 2))
    (tensor([7]), tensor([[1., 1.]]))
    """
    if keys.dim() != 1 or rows.dim() != 2 or len(keys) != len(rows):
        raise ShapeError(
            f"gather_rows needs keys [N] and rows [N, D], got shapes {tuple(keys.shape)} and "
            f"{tuple(rows.shape)}"
        )
    if world.size == 1:
        return keys, rows
    with world.naming_lost("gathering rows of all ranks"), torch.no_grad():
        counts = _gather(world, torch.tensor([len(keys)], device=keys.device), [1] * world.size)
        lengths: list[int] = counts.tolist()
        found = _gather(world, keys, lengths), _gather(world, rows, lengths)
    if traffic is not None:
        _count(world, lengths, (keys, rows), traffic)
    return found


def gather_gradient(
    world: World,
    gradient: torch.Tensor | None,
    parameter: torch.Tensor,
    *,
    traffic: Traffic | None = None,
) -> torch.Tensor:
    """The sum over ranks of a sparse gradient of ``parameter`` [K, D], as a sparse tensor with each
    row once. All ranks must call it; None stands for a gradient without rows."""
    if gradient is None:
        keys = torch.zeros(0, dtype=torch.int64, device=parameter.device)
        rows = parameter.new_zeros((0, *parameter.shape[1:]))
    else:
        own = gradient.coalesce()
        keys, rows = own.indices()[0], own.values()
    keys, rows = gather_rows(world, keys, rows.detach(), traffic=traffic)
    return torch.sparse_coo_tensor(keys[None], rows, parameter.shape).coalesce()


def _gather(world: World, own: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    """What the ranks have, in a row; shorter ones travel filled up to the longest."""
    longest = max(lengths)
    if not longest:
        return own.clone()
    padded = own.new_zeros((longest, *own.shape[1:]))
    padded[: len(own)] = own.detach()
    parts = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(parts, padded, group=world.group)
    return torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)])


def _count(
    world: World, lengths: list[int], parts: tuple[torch.Tensor, ...], traffic: Traffic
) -> None:
    width = sum(part.element_size() * (part.shape[1] if part.dim() > 1 else 1) for part in parts)
    sent = max(lengths) * width
    others = world.size - 1
    traffic.count(
        Transfer(
            kind="all_gather",
            payload_bytes=sent,
            sent_bytes=sent * others,
            sent_across_nodes_bytes=sent * (world.size - world.ranks_per_node),
        )
    )
