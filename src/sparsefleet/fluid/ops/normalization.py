"""Means and deviations taken out."""

from __future__ import annotations

import torch
from torch.nn import functional

from sparsefleet.fluid.lowering.registry import op

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
    """Fluid keeps the variance divided by N, torch by N - 1: so the new ones are made here."""
    channels = 1 if data_layout == "NCHW" else x.dim() - 1
    axes = [axis for axis in range(x.dim()) if axis != channels]
    shape = [1 if axis != channels else -1 for axis in range(x.dim())]
    new_mean, new_variance = mean, variance
    use_mean, use_variance = mean, variance
    if not is_test and not use_global_stats:
        use_variance, use_mean = torch.var_mean(x, axes, correction=0)
        new_mean = mean * momentum + use_mean.detach() * (1 - momentum)
        new_variance = variance * momentum + use_variance.detach() * (1 - momentum)
    factor = scale * torch.rsqrt(use_variance + epsilon)
    y = (x - use_mean.reshape(shape)) * factor.reshape(shape) + bias.reshape(shape)
    return [y, new_mean, new_variance]
