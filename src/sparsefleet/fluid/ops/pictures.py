"""Convolutions and pools over pictures [N, C, H, W]."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

from sparsefleet.fluid.lowering.registry import op

Tensor = torch.Tensor


def _padded(x: Tensor, sides: Sequence[int], value: float = 0.0) -> Tensor:
    """sides: above, below, left, right."""
    above, below, left, right = sides
    if not any(sides):
        return x
    return functional.pad(x, [left, right, above, below], value=value)


@op("conv2d", "Input Filter", "Output", lod="none")
def conv2d(
    x: Tensor,
    weight: Tensor,
    *,
    strides: Sequence[int],
    paddings: Sequence[int],
    dilations: Sequence[int],
    groups: int = 1,
) -> Tensor:
    return functional.conv2d(
        _padded(x, paddings), weight, None, tuple(strides), 0, tuple(dilations), groups
    )


@op("pool2d", "X", lod="none")
def pool2d(
    x: Tensor,
    *,
    pooling_type: str,
    ksize: Sequence[int],
    strides: Sequence[int],
    paddings: Sequence[int],
    global_pooling: bool = False,
    ceil_mode: bool = False,
    exclusive: bool = True,
) -> Tensor:
    """exclusive: the average leaves padding out."""
    if global_pooling:
        return x.amax((2, 3), True) if pooling_type == "max" else x.mean((2, 3), True)
    size, stride = tuple(ksize), tuple(strides)
    if pooling_type == "max":
        low = torch.finfo(x.dtype).min
        return functional.max_pool2d(_padded(x, paddings, low), size, stride, ceil_mode=ceil_mode)
    sums = functional.avg_pool2d(_padded(x, paddings), size, stride, ceil_mode=ceil_mode)
    if not exclusive or not any(paddings):
        return sums
    inside = _padded(torch.ones_like(x[:1, :1]), paddings)
    return sums / functional.avg_pool2d(inside, size, stride, ceil_mode=ceil_mode)
