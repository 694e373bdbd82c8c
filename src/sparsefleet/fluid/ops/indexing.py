"""Elements by number."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from sparsefleet.fluid.lowering.registry import op

Tensor = torch.Tensor


@op("top_k", "X", "Out Indices")
def top_k(x: Tensor, *, k: int) -> list[Tensor]:
    values, indices = torch.topk(x, k, dim=-1)
    return [values, indices]


@op("gather", "X Index", lod="none")
def gather(x: Tensor, index: Tensor) -> Tensor:
    return x.index_select(0, index.reshape(-1).long())


@op("gather_nd", "X Index", lod="none")
def gather_nd(x: Tensor, index: Tensor) -> Tensor:
    """index: int[..., K]: the first K numbers of an element's or slice's place."""
    places = index.long().unbind(-1)
    return x[places]


@op("scatter", "X Ids Updates")
def scatter(x: Tensor, ids: Tensor, updates: Tensor, *, overwrite: bool = True) -> Tensor:
    rows = ids.reshape(-1).long()
    if overwrite:
        return x.index_copy(0, rows, updates)
    cleared = x.index_fill(0, rows, 0.0)
    return cleared.index_add(0, rows, updates)


def _one_hot_shape(shape: tuple[int, ...], **settings: Any) -> list[tuple[int, ...]]:
    return [(*shape[:-1], settings["depth"])]


def _one_hot_v2_shape(shape: tuple[int, ...], **settings: Any) -> list[tuple[int, ...]]:
    return [(*shape, settings["depth"])]


@op("one_hot", "X", infer=_one_hot_shape)
def one_hot(x: Tensor, *, depth: int) -> Tensor:
    """ids [..., 1] -> float32[..., depth]."""
    return functional.one_hot(x.long().squeeze(-1), depth).float()


@op("one_hot_v2", "X", infer=_one_hot_v2_shape)
def one_hot_v2(x: Tensor, *, depth: int) -> Tensor:
    """ids [...] -> float32[..., depth]."""
    return functional.one_hot(x.long(), depth).float()


@op("argsort", "X", "Out Indices")
def argsort(x: Tensor, *, axis: int = -1, descending: bool = False) -> list[Tensor]:
    values, indices = torch.sort(x, dim=axis, descending=descending, stable=True)
    return [values, indices]
