"""Arithmetic of two tensors, the second fitted into the first; and of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from sparsefleet.fluid.lowering.registry import op

__all__ = ["fit_second"]

Tensor = torch.Tensor


def fit_second(x: Tensor, y: Tensor, axis: int) -> Tensor:
    """`y` with sizes of 1 put around its own, so that these meet those of `x` from `axis` on.

    axis: -1 lets the last sizes meet, as NumPy does.

    >>> fit_second(torch.zeros(2, 3, 4), torch.zeros(3), axis=1).shape
    torch.Size([1, 3, 1])
    """
    if axis == -1 or y.dim() >= x.dim():
        return y
    sizes = list(y.shape)
    while len(sizes) > 1 and sizes[-1] == 1:  # Fluid lets them go
        sizes.pop()
    behind = x.dim() - axis - len(sizes)
    if behind < 0:
        raise ValueError(f"axis {axis} leaves too few sizes of {list(x.shape)} for {sizes}")
    return y.reshape([1] * axis + sizes + [1] * behind)


def _binary(type: str, function: Callable[[Tensor, Tensor], Tensor]) -> None:
    @op(type, "X Y")
    def run(x: Tensor, y: Tensor, *, axis: int = -1) -> Tensor:
        return function(x, fit_second(x, y, axis))


_binary("elementwise_add", torch.add)
_binary("elementwise_sub", torch.sub)
_binary("elementwise_mul", torch.mul)
# Of equal elements the gradient is the second's.
_binary("elementwise_max", lambda x, y: torch.where(x > y, x, y))
_binary("elementwise_min", lambda x, y: torch.where(x < y, x, y))
_binary("elementwise_pow", torch.pow)
_binary("elementwise_floordiv", lambda x, y: torch.div(x, y, rounding_mode="trunc"))
_binary(
    "elementwise_mod",
    lambda x, y: torch.remainder(x, y) if x.is_floating_point() else torch.fmod(x, y),
)


@op("elementwise_div", "X Y")
def elementwise_div(x: Tensor, y: Tensor, *, axis: int = -1) -> Tensor:
    y = fit_second(x, y, axis)
    return x / y if x.is_floating_point() else torch.div(x, y, rounding_mode="trunc")


@op("sum", "X*")
def add_all(tensors: list[Tensor]) -> Tensor:
    total = tensors[0]
    for tensor in tensors[1:]:
        total = total + tensor
    return total.clone() if len(tensors) == 1 else total


@op("scale", "X ScaleTensor?")
def scale(
    x: Tensor,
    scale_tensor: Tensor | None,
    *,
    scale: float = 1.0,
    bias: float = 0.0,
    bias_after_scale: bool = True,
) -> Tensor:
    factor: Any = scale if scale_tensor is None else scale_tensor.detach().to(x.dtype)
    if not x.is_floating_point():
        factor, bias = (int(scale) if scale_tensor is None else factor), int(bias)
    made: Tensor = x * factor + bias if bias_after_scale else (x + bias) * factor
    return made


@op("clip", "X")
def clip(x: Tensor, *, min: float, max: float) -> Tensor:
    return x.clamp(min, max)


@op("pow", "X FactorTensor?")
def power(x: Tensor, factor_tensor: Tensor | None, *, factor: float = 1.0) -> Tensor:
    return x.pow(factor if factor_tensor is None else factor_tensor.detach())


@op("increment", "X")
def increment(x: Tensor, *, step: float = 1.0) -> Tensor:
    return x + (step if x.is_floating_point() else int(step))
