"""Reductions and cumulative sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.lowering.registry import LodRule, Shape, float_rule, op
from sparsefleet.fluid.operators.layer_helper import LayerHelper, layer

__all__ = [
    "argmax",
    "argmin",
    "cumsum",
    "mean",
    "reduce_all",
    "reduce_any",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_prod",
    "reduce_sum",
]

Tensor = torch.Tensor


def _sized(x: Tensor) -> Tensor:
    return x.reshape(1) if x.dim() == 0 else x


def _lod_of(attrs: Mapping[str, Any]) -> LodRule:
    """Return the LoD rule: the output keeps the LoD unless rows are reduced."""
    dim = attrs.get("dim")
    return "none" if dim is None or 0 in dim or attrs.get("reduce_all") else "share"


def _reduced(x: Shape, /, **attrs: Any) -> list[Shape] | None:
    given: Sequence[int] | None = attrs.get("dim")
    keep = bool(attrs.get("keep_dim"))
    axes = range(len(x)) if given is None or attrs.get("reduce_all") else given
    if not x or not axes or any(not -len(x) <= axis < len(x) for axis in axes):
        return None
    gone = {axis % len(x) for axis in axes}
    sizes = [1 if place in gone else size for place, size in enumerate(x)]
    if not keep:
        sizes = [size for place, size in enumerate(sizes) if place not in gone]
    return [tuple(sizes) or (1,)]


def _register(type: str, function: Callable[..., Any], *, of_floats: bool = True) -> None:
    @op(type, "X", lod=_lod_of, shape=float_rule(_reduced) if of_floats else None)
    def run(
        x: Tensor,
        *,
        dim: Sequence[int] | None = None,
        keep_dim: bool = False,
        reduce_all: bool = False,
    ) -> Tensor:
        whole = dim is None or reduce_all
        axes = list(range(x.dim())) if whole else [d % x.dim() for d in dim or ()]
        return _sized(function(x, axes, keep_dim))


def _extreme(function: Callable[..., Tensor], x: Tensor, axes: list[int], keep: bool) -> Tensor:
    """Take a minimum or maximum.

    As in Fluid, each of several equal extremes gets the whole gradient.
    """
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
_register(
    "reduce_all",
    lambda x, axes, keep: torch.all(x, tuple(axes), keepdim=keep),
    of_floats=False,
)
_register(
    "reduce_any",
    lambda x, axes, keep: torch.any(x, tuple(axes), keepdim=keep),
    of_floats=False,
)


@op("mean", "X", lod="none", shape=float_rule(lambda _, **__: [(1,)]))
def mean_op(x: Tensor) -> Tensor:
    return x.mean().reshape(1)


@op("arg_max", "X", lod="none")
def arg_max(x: Tensor, *, axis: int = 0) -> Tensor:
    return x.argmax(axis)


@op("arg_min", "X", lod="none")
def arg_min(x: Tensor, *, axis: int = 0) -> Tensor:
    return x.argmin(axis)


@op("cumsum", "X")
def cumsum_op(
    x: Tensor, *, axis: int = -1, exclusive: bool = False, reverse: bool = False
) -> Tensor:
    """Return cumulative sums. exclusive: omit the current element. reverse: start from the end."""
    sums = x.flip(axis).cumsum(axis).flip(axis) if reverse else x.cumsum(axis)
    return sums - x if exclusive else sums


def _one(*shapes: object) -> list[tuple[int, ...]]:
    del shapes
    return [(1,)]


@op("squared_l2_norm", "X", lod="none", infer=_one)
def squared_l2_norm(x: Any) -> Tensor:
    """Return the squared norm of a tensor, or of a table's rows (keys, values)."""
    if x is None:
        return torch.zeros(1)
    return (torch.from_numpy(x[1]) if isinstance(x, tuple) else x).square().sum().reshape(1)


def _reduction(type: str) -> Callable[..., Variable]:
    def call(
        input: Variable,
        dim: int | Sequence[int] | None = None,
        keep_dim: bool = False,
        name: str | None = None,
    ) -> Variable:
        helper = LayerHelper(type, name)
        axes = [dim] if isinstance(dim, int) else None if dim is None else list(dim)
        attrs = {"dim": axes or None, "keep_dim": keep_dim}
        return helper.add(type, {"X": helper.check_input(input)}, attrs)

    call.__name__ = call.__qualname__ = type
    call.__doc__ = f"Return the {type.removeprefix('reduce_')} over axes `dim`, or over all axes."
    return layer(call)


reduce_all = _reduction("reduce_all")
reduce_any = _reduction("reduce_any")
reduce_max = _reduction("reduce_max")
reduce_mean = _reduction("reduce_mean")
reduce_min = _reduction("reduce_min")
reduce_prod = _reduction("reduce_prod")
reduce_sum = _reduction("reduce_sum")


@layer
def mean(x: Variable, name: str | None = None) -> Variable:
    """Return the mean of all elements: shape [1]."""
    helper = LayerHelper("mean", name)
    return helper.add("mean", {"X": helper.check_input(x, "x")})


@layer
def argmax(x: Variable, axis: int = 0) -> Variable:
    """Return the index of the largest element along an axis: int64."""
    helper = LayerHelper("arg_max")
    return helper.add("arg_max", {"X": helper.check_input(x, "x")}, {"axis": axis})


@layer
def argmin(x: Variable, axis: int = 0) -> Variable:
    """Return the index of the smallest element along an axis: int64."""
    helper = LayerHelper("arg_min")
    return helper.add("arg_min", {"X": helper.check_input(x, "x")}, {"axis": axis})


@layer
def cumsum(
    x: Variable,
    axis: int | None = None,
    exclusive: bool | None = None,
    reverse: bool | None = None,
) -> Variable:
    """Return cumulative sums. exclusive: omit the current element. reverse: start from the end."""
    helper = LayerHelper("cumsum")
    attrs = {
        "axis": -1 if axis is None else axis,
        "exclusive": bool(exclusive),
        "reverse": bool(reverse),
    }
    return helper.add("cumsum", {"X": helper.check_input(x, "x")}, attrs)
