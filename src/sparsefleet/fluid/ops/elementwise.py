"""Arithmetic of two tensors, the second fitted into the first; and of one."""

from __future__ import annotations

from collections.abc import Callable

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
_binary("elementwise_max", torch.maximum)
_binary("elementwise_min", torch.minimum)
_binary("elementwise_pow", torch.pow)
_binary("elementwise_mod", torch.remainder)
_binary("elementwise_floordiv", lambda x, y: torch.div(x, y, rounding_mode="floor"))


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


@op("scale", "X")
def scale(
    x: Tensor, *, scale: float = 1.0, bias: float = 0.0, bias_after_scale: bool = True
) -> Tensor:
    if not x.is_floating_point():
        scale, bias = int(scale), int(bias)
    return x * scale + bias if bias_after_scale else (x + bias) * scale


@op("clip", "X")
def clip(x: Tensor, *, min: float, max: float) -> Tensor:
    return x.clamp(min, max)


@op("pow", "X")
def power(x: Tensor, *, factor: float = 1.0) -> Tensor:
    return x.pow(factor)


@op("increment", "X")
def increment(x: Tensor, *, step: float = 1.0) -> Tensor:
    return x + (step if x.is_floating_point() else int(step))
