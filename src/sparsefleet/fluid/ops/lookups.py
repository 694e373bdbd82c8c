"""Elements found, numbered, hashed and put back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from sparsefleet.fluid.lowering.registry import Shape, op
from sparsefleet.fluid.ops.xxhash64 import xxhash64

Tensor = torch.Tensor


def _open_rows(x: Shape, **settings: Any) -> list[Shape]:
    del settings
    return [(-1, len(x))]


@op("where_index", "Condition", lod="none", infer=_open_rows)
def where_index(condition: Tensor) -> Tensor:
    """The places of all elements that are not 0: int64[K, rank]."""
    return condition.nonzero()


def _unique_shapes(x: Shape, **settings: Any) -> list[Shape]:
    del settings
    return [(-1,), x, (-1,)]


@op("unique", "X", "Out Index Count?", lod="none", infer=_unique_shapes)
def unique(x: Tensor, *, index_dtype: str = "int32") -> list[Tensor]:
    """The different values as they first come, which one each element is, and their counts."""
    values, inverse, counts = torch.unique(x, return_inverse=True, return_counts=True)
    firsts = torch.full((len(values),), len(x)).scatter_reduce(
        0, inverse, torch.arange(len(x)), "amin"
    )
    order = firsts.argsort()
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order))
    kind = getattr(torch, index_dtype)
    return [values[order], rank[inverse].to(kind), counts[order].to(kind)]


@op("scatter_nd_add", "X Index Updates", lod="none")
def scatter_nd_add(x: Tensor, index: Tensor, updates: Tensor) -> Tensor:
    """x with updates added at the places in index int[..., K]."""
    return x.index_put(index.long().unbind(-1), updates, accumulate=True)


@op("index_select", "X Index", lod="none")
def index_select(x: Tensor, index: Tensor, *, dim: int = 0) -> Tensor:
    return x.index_select(dim, index.reshape(-1).long())


@op("index_sample", "X Index", lod="none")
def index_sample(x: Tensor, index: Tensor) -> Tensor:
    """x[i, index[i, j]]."""
    return x.gather(1, index.long())


@op("multiplex", "Ids X*", lod="none")
def multiplex(ids: Tensor, tensors: list[Tensor]) -> Tensor:
    """Row i of the tensor with number ids[i]."""
    rows = torch.arange(ids.shape[0], device=ids.device)
    return torch.stack(tensors)[ids.reshape(-1).long(), rows]


@op("shard_index", "X")
def shard_index(
    x: Tensor, *, index_num: int, nshards: int, shard_id: int, ignore_value: int = -1
) -> Tensor:
    """The number of an id within its shard; ignore_value for those of other shards."""
    size = -(-index_num // nshards)
    if not x.is_meta and x.numel() and not 0 <= int(x.min()) <= int(x.max()) < index_num:
        raise ValueError(f"ids must be in 0..{index_num - 1}, got {x.min()}..{x.max()}")
    inside = torch.div(x, size, rounding_mode="floor") == shard_id
    return torch.where(inside, x % size, ignore_value)


def _hash_shape(x: Shape, **settings: Any) -> list[Shape]:
    return [(*x[:-1], settings["num_hash"], 1)]


@op("hash", "X", infer=_hash_shape)
def hash_ids(x: Tensor, *, num_hash: int = 1, mod_by: int = 100000) -> Tensor:
    """Rows of ids [N, K] to numbers below mod_by: [N, num_hash, 1], of the type of the ids."""
    data = x.contiguous().reshape(-1, x.shape[-1]).cpu().numpy().view("uint8")
    found = [xxhash64(data, seed) % mod_by for seed in range(num_hash)]
    stacked = torch.stack([torch.from_numpy(numbers.astype("int64")) for numbers in found], 1)
    return stacked.reshape(*x.shape[:-1], num_hash, 1).to(x.device, x.dtype)


@op("gather_tree", "Ids Parents", lod="none")
def gather_tree(ids: Tensor, parents: Tensor) -> Tensor:
    """Whole beams [T, B, K] from their ends back: the ids of the parents of each step."""
    if ids.is_meta:
        return torch.empty_like(ids)
    out = ids.clone()
    beam = torch.arange(ids.shape[2]).expand(ids.shape[1:]).to(parents.dtype)
    for step in range(len(ids) - 1, -1, -1):
        out[step] = ids[step].gather(1, beam.long())
        beam = parents[step].gather(1, beam.long())
    return out


@op("mean_iou", "Predictions Labels", "OutMeanIou OutWrong OutCorrect", lod="none")
def mean_iou(predictions: Tensor, labels: Tensor, *, num_classes: int) -> list[Tensor]:
    """The mean over classes of right / (right + wrong), and the counts of both."""
    if predictions.is_meta:
        counts = torch.empty(num_classes, dtype=torch.int32, device="meta")
        return [torch.empty(1, device="meta"), counts, counts]
    found, wanted = predictions.reshape(-1).long(), labels.reshape(-1).long()
    hit = found == wanted
    right = torch.bincount(found[hit], minlength=num_classes)
    wrong = torch.bincount(found[~hit], minlength=num_classes)
    wrong = wrong + torch.bincount(wanted[~hit], minlength=num_classes)
    total = right + wrong
    valid = (total > 0).sum().clamp(min=1)
    mean = (right / total.clamp(min=1)).sum() / valid
    return [mean.float().reshape(1), wrong.int(), right.int()]


@op("roll", "X", lod="none")
def roll(x: Tensor, *, shifts: Sequence[int], dims: Sequence[int]) -> Tensor:
    return torch.roll(x, list(shifts), list(dims))
