"""Functions of each element that are cut, bent or learned."""

from __future__ import annotations

import torch
from torch.nn import functional

from sparsefleet.fluid.lowering.registry import op

Tensor = torch.Tensor


@op("hard_shrink", "X")
def hard_shrink(x: Tensor, *, threshold: float = 0.5) -> Tensor:
    return functional.hardshrink(x, threshold)


@op("softshrink", "X")
def softshrink(x: Tensor, *, alpha: float = 0.5) -> Tensor:
    return functional.softshrink(x, alpha)


@op("thresholded_relu", "X")
def thresholded_relu(x: Tensor, *, threshold: float = 1.0) -> Tensor:
    return x * (x > threshold)


@op("hard_swish", "X")
def hard_swish(
    x: Tensor, *, threshold: float = 6.0, scale: float = 6.0, offset: float = 3.0
) -> Tensor:
    return x * (x + offset).clamp(0.0, threshold) / scale


@op("stanh", "X")
def stanh(x: Tensor, *, scale_a: float = 0.67, scale_b: float = 1.7159) -> Tensor:
    return scale_b * torch.tanh(scale_a * x)


@op("selu", "X")
def selu(
    x: Tensor, *, scale: float = 1.0507009873554805, alpha: float = 1.6732632423543772
) -> Tensor:
    return scale * torch.where(x > 0, x, alpha * torch.expm1(x.clamp(max=0.0)))


@op("mish", "X")
def mish(x: Tensor, *, threshold: float = 20.0) -> Tensor:
    return x * torch.tanh(functional.softplus(x, threshold=threshold))


@op("log1p", "X")
def log1p(x: Tensor) -> Tensor:
    return torch.log1p(x)


@op("prelu", "X Alpha")
def prelu(x: Tensor, alpha: Tensor, *, mode: str) -> Tensor:
    """Below 0 times alpha: one for all, a channel's, or an element's."""
    if mode == "channel":
        alpha = alpha.reshape(1, -1, *[1] * (x.dim() - 2))
    elif mode == "element":
        alpha = alpha.reshape(1, *x.shape[1:])
    return torch.where(x > 0, x, alpha * x)


@op("maxout", "X")
def maxout(x: Tensor, *, groups: int, axis: int = 1) -> Tensor:
    """The largest of each `groups` channels that follow one another."""
    axis %= x.dim()
    if x.shape[axis] % groups:
        raise ValueError(f"{x.shape[axis]} channels are not divisible by {groups} groups")
    shape = (*x.shape[:axis], x.shape[axis] // groups, groups, *x.shape[axis + 1 :])
    return x.reshape(shape).amax(axis + 1)
