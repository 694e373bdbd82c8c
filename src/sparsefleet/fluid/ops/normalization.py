"""Means and deviations taken out."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from sparsefleet.fluid.lowering.registry import op
from sparsefleet.fluid.ops.windows import channels_first, channels_last

Tensor = torch.Tensor


@op("layer_norm", "X Scale? Bias?", "Y")
def layer_norm(
    x: Tensor,
    scale: Tensor | None,
    bias: Tensor | None,
    *,
    begin_norm_axis: int = 1,
    epsilon: float = 1e-5,
) -> Tensor:
    shape = x.shape[begin_norm_axis:]
    weight = None if scale is None else scale.reshape(shape)
    return functional.layer_norm(
        x, shape, weight, None if bias is None else bias.reshape(shape), epsilon
    )


@op("batch_norm", "X Scale Bias Mean Variance", "Y MeanOut VarianceOut")
def batch_norm(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    *,
    momentum: float = 0.9,
    epsilon: float = 1e-5,
    is_test: bool = False,
    use_global_stats: bool = False,
    data_layout: str = "NCHW",
) -> list[Tensor]:
    """Fluid keeps the variance divided by N, torch by N - 1: so the new ones are made here.

    Of x in half precision, statistics are float32 as they are kept.
    """
    channels = 1 if data_layout == "NCHW" else x.dim() - 1
    axes = [axis for axis in range(x.dim()) if axis != channels]
    shape = [1 if axis != channels else -1 for axis in range(x.dim())]
    new_mean, new_variance = mean, variance
    use_mean, use_variance = mean, variance
    if not is_test and not use_global_stats:
        use_variance, use_mean = torch.var_mean(x.to(mean.dtype), axes, correction=0)
        new_mean = mean * momentum + use_mean.detach() * (1 - momentum)
        new_variance = variance * momentum + use_variance.detach() * (1 - momentum)
    factor = scale * torch.rsqrt(use_variance + epsilon)
    y = (x - use_mean.reshape(shape)) * factor.reshape(shape) + bias.reshape(shape)
    return [y.to(x.dtype), new_mean, new_variance]


@op("group_norm", "X Scale? Bias?", "Y", lod="none")
def group_norm(
    x: Tensor,
    scale: Tensor | None,
    bias: Tensor | None,
    *,
    groups: int,
    epsilon: float = 1e-5,
    data_layout: str = "NCHW",
) -> Tensor:
    """Mean 0 and deviation 1 over each group of channels."""
    y = functional.group_norm(channels_first(x, data_layout), groups, scale, bias, epsilon)
    return channels_last(y, data_layout)


@op("instance_norm", "X Scale Bias", "Y", lod="none")
def instance_norm(x: Tensor, scale: Tensor, bias: Tensor, *, epsilon: float = 1e-5) -> Tensor:
    """Mean 0 and deviation 1 over each channel of each picture."""
    variance, mean = torch.var_mean(x, list(range(2, x.dim())), correction=0, keepdim=True)
    shape = [1, -1, *[1] * (x.dim() - 2)]
    normal = (x - mean) * torch.rsqrt(variance + epsilon)
    return normal * scale.reshape(shape) + bias.reshape(shape)


@op("lrn", "X", lod="none")
def lrn(
    x: Tensor,
    *,
    n: int = 5,
    k: float = 1.0,
    alpha: float = 1e-4,
    beta: float = 0.75,
    data_format: str = "NCHW",
) -> Tensor:
    """Divided by a power of the squares of n channels around each."""
    x = channels_first(x, data_format)
    before = (n - 1) // 2
    squares = functional.pad(x.square(), [0, 0, 0, 0, before, n - 1 - before])
    sums = sum(squares[:, shift : shift + x.shape[1]] for shift in range(n))
    return channels_last(x * (k + alpha * sums) ** -beta, data_format)


class _DataNorm(torch.autograd.Function):
    """The gradients of the sums are what the batch adds to them, as optimizers of Fluid want."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *states: Any) -> Tensor:
        size, total, squares, epsilon, slot_dim = states
        mean, scale = total / size, (size / squares).sqrt()
        y: Tensor = (x - mean) * scale
        known = None
        if slot_dim > 0:  # a slot whose first value, its count, is 0 was not seen
            known = _seen(x, slot_dim)
            y = y * known
        ctx.save_for_backward(x, mean, scale, known)
        ctx.epsilon = epsilon
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        x, mean, scale, known = ctx.saved_tensors
        seen = torch.ones_like(x) if known is None else known
        counts = seen.sum(0)
        sums = (x * seen).sum(0)
        squares = ((x - mean).square() * seen).sum(0)
        if known is None:
            added = (counts, sums, squares + counts * ctx.epsilon)
        else:
            parts = counts.clamp(min=1)
            there = (counts > 0).to(x.dtype)
            added = (there, sums / parts, (squares / parts + ctx.epsilon) * there)
        return (gradients[0] * scale, *added, None, None)


def _seen(x: Tensor, slot_dim: int) -> Tensor:
    first = x[:, ::slot_dim].abs() >= 1e-7
    return first.repeat_interleave(slot_dim, 1)[:, : x.shape[1]].to(x.dtype)


@op("data_norm", "X BatchSize BatchSum BatchSquareSum", "Y")
def data_norm(
    x: Tensor,
    size: Tensor,
    total: Tensor,
    squares: Tensor,
    *,
    epsilon: float = 1e-5,
    slot_dim: int = -1,
) -> Tensor:
    """Mean 0 and deviation 1 by sums that are learned like parameters."""
    made: Tensor = _DataNorm.apply(x, size, total, squares, epsilon, slot_dim)  # type: ignore[no-untyped-call]
    return made


@op("spectral_norm", "Weight U V")
def spectral_norm(
    weight: Tensor, u: Tensor, v: Tensor, *, dim: int = 0, power_iters: int = 1, eps: float = 1e-12
) -> Tensor:
    """Divided by its largest singular value, which power iterations from u and v find."""
    order = [dim, *(axis for axis in range(weight.dim()) if axis != dim)]
    matrix = weight.permute(order).reshape(weight.shape[dim], -1)
    left, right = u, v
    with torch.no_grad():
        for _ in range(power_iters):
            right = matrix.T @ left
            right = right / (right.norm() + eps)
            left = matrix @ right
            left = left / (left.norm() + eps)
    return weight / (left @ matrix @ right)
