"""Rows by id. Parameters in tables are read by `lowering.tables`."""

from __future__ import annotations

import torch

from sparsefleet.fluid.lowering.bag_pooling import pool_bags
from sparsefleet.fluid.lowering.lowered import Lod
from sparsefleet.fluid.lowering.registry import op

Tensor = torch.Tensor


def _rows(weight: Tensor, ids: Tensor, padding_idx: int) -> Tensor:
    ids = ids.long()
    if not ids.is_meta and ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < len(weight):
        raise ValueError(f"ids must be in 0..{len(weight) - 1}, got {ids.min()}..{ids.max()}")
    rows = torch.nn.functional.embedding(ids, weight)
    return rows if padding_idx < 0 else rows * (ids != padding_idx).unsqueeze(-1)


@op("lookup_table", "W Ids")
def lookup_table(weight: Tensor, ids: Tensor, *, padding_idx: int = -1) -> Tensor:
    """ids int64[..., 1] -> [..., D]."""
    if ids.shape[-1] != 1:
        raise ValueError(f"the last size of ids must be 1, got {tuple(ids.shape)}")
    return _rows(weight, ids.squeeze(-1), padding_idx)


@op("lookup_table_v2", "W Ids")
def lookup_table_v2(weight: Tensor, ids: Tensor, *, padding_idx: int = -1) -> Tensor:
    """ids int64[...] -> [..., D]."""
    return _rows(weight, ids, padding_idx)


@op("lookup_bag", "W Ids", lod="function")
def lookup_bag(
    weight: Tensor,
    ids: Tensor,
    *,
    lods: list[Lod],
    flat: bool,
    padding_idx: int,
    pooltype: str,
    pad_value: float,
) -> tuple[Tensor, Lod]:
    """A lookup, and a sum for each sequence of ids; flat: ids as of lookup_table."""
    found = (lookup_table if flat else lookup_table_v2)(weight, ids, padding_idx=padding_idx)
    return pool_bags(found, lods[1], pooltype, pad_value)
