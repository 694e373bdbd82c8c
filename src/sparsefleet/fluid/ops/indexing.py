"""Elements by number."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from sparsefleet.fluid.lowering.registry import Shape, op

Tensor = torch.Tensor


def _top_shapes(x: Shape, k: Shape | None, /, **settings: Any) -> list[Shape] | None:
    del settings
    return None if k is None else [(*x[:-1], -1)] * 2


@op("top_k", "X K?", "Out Indices", infer=_top_shapes)
def top_k(x: Tensor, k_tensor: Tensor | None, *, k: int = 0) -> list[Tensor]:
    values, indices = torch.topk(x, k if k_tensor is None else int(k_tensor), dim=-1)
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


def _one_hot_shape(shape: Shape, depth: Shape | None, /, **settings: Any) -> list[Shape]:
    del depth
    return [(*shape[:-1], settings.get("depth", -1))]


def _one_hot_v2_shape(shape: Shape, depth: Shape | None, /, **settings: Any) -> list[Shape]:
    del depth
    return [(*shape, settings.get("depth", -1))]


def _hot(ids: Tensor, depth: int, lenient: bool) -> Tensor:
    outside = (ids < 0) | (ids >= depth)
    if not lenient and bool(outside.any()):
        raise ValueError(f"ids must be in 0..{depth - 1}, got {ids.min()}..{ids.max()}")
    return functional.one_hot(ids.clamp(0, depth - 1), depth) * ~outside[..., None]


@op("one_hot", "X DepthTensor?", infer=_one_hot_shape)
def one_hot(
    x: Tensor, depth_tensor: Tensor | None, *, depth: int = 0, allow_out_of_range: bool = False
) -> Tensor:
    """ids [..., 1] -> float32[..., depth]."""
    size = depth if depth_tensor is None else int(depth_tensor)
    return _hot(x.long().squeeze(-1), size, allow_out_of_range).float()


@op("one_hot_v2", "X DepthTensor?", infer=_one_hot_v2_shape)
def one_hot_v2(
    x: Tensor, depth_tensor: Tensor | None, *, depth: int = 0, allow_out_of_range: bool = False
) -> Tensor:
    """ids [...] -> float32[..., depth]."""
    size = depth if depth_tensor is None else int(depth_tensor)
    return _hot(x.long(), size, allow_out_of_range).float()


@op("argsort", "X", "Out Indices")
def argsort(x: Tensor, *, axis: int = -1, descending: bool = False) -> list[Tensor]:
    values, indices = torch.sort(x, dim=axis, descending=descending, stable=True)
    return [values, indices]
