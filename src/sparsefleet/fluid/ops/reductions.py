"""Many elements to one. A result without sizes has the one size 1, as in Fluid."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from sparsefleet.fluid.lowering.registry import LodRule, op

Tensor = torch.Tensor


def _sized(x: Tensor) -> Tensor:
    return x.reshape(1) if x.dim() == 0 else x


def _lod_of(attrs: Mapping[str, Any]) -> LodRule:
    """Rows that are not added up stay in their sequences."""
    dim = attrs.get("dim")
    return "none" if dim is None or 0 in dim else "share"


def _register(type: str, function: Callable[..., Any]) -> None:
    @op(type, "X", lod=_lod_of)
    def run(x: Tensor, *, dim: Sequence[int] | None = None, keep_dim: bool = False) -> Tensor:
        axes = list(range(x.dim())) if dim is None else [d % x.dim() for d in dim]
        return _sized(function(x, axes, keep_dim))


def _extreme(function: Callable[..., Tensor], x: Tensor, axes: list[int], keep: bool) -> Tensor:
    """As Fluid, each of several equal elements has the whole gradient."""
    found = function(x.detach(), axes, keepdim=True)
    if x.requires_grad:
        found = found + ((x - x.detach()) * (x == found)).sum(axes, keepdim=True)
    return found if keep else found.squeeze(axes)


def _product(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    for axis in sorted(axes, reverse=True):
        x = x.prod(axis, keepdim=keep)
    return x


_register("reduce_sum", lambda x, axes, keep: x.sum(axes, keepdim=keep))
_register("reduce_mean", lambda x, axes, keep: x.mean(axes, keepdim=keep))
_register("reduce_max", lambda x, axes, keep: _extreme(torch.amax, x, axes, keep))
_register("reduce_min", lambda x, axes, keep: _extreme(torch.amin, x, axes, keep))
_register("reduce_prod", _product)
_register("reduce_all", lambda x, axes, keep: torch.all(x, tuple(axes), keepdim=keep))
_register("reduce_any", lambda x, axes, keep: torch.any(x, tuple(axes), keepdim=keep))


@op("mean", "X", lod="none")
def mean(x: Tensor) -> Tensor:
    return x.mean().reshape(1)


@op("arg_max", "X", lod="none")
def arg_max(x: Tensor, *, axis: int = 0) -> Tensor:
    return x.argmax(axis)


@op("arg_min", "X", lod="none")
def arg_min(x: Tensor, *, axis: int = 0) -> Tensor:
    return x.argmin(axis)


@op("cumsum", "X")
def cumsum(x: Tensor, *, axis: int = -1, exclusive: bool = False, reverse: bool = False) -> Tensor:
    """exclusive: without the element itself. reverse: from the end."""
    sums = x.flip(axis).cumsum(axis).flip(axis) if reverse else x.cumsum(axis)
    return sums - x if exclusive else sums


def _one(*shapes: object) -> list[tuple[int, ...]]:
    del shapes
    return [(1,)]


@op("squared_l2_norm", "X", lod="none", infer=_one)
def squared_l2_norm(x: Any) -> Tensor:
    """Of a tensor, or of the rows (keys, values) for a table."""
    if x is None:
        return torch.zeros(1)
    return (torch.from_numpy(x[1]) if isinstance(x, tuple) else x).square().sum().reshape(1)
