"""Convolutions and pools."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.initializer import Normal
from sparsefleet.fluid.layer_helper import LayerHelper, layer
from sparsefleet.fluid.param_attr import to_param_attr

__all__ = ["conv2d", "pool2d"]

Pair = int | Sequence[int]


def _pair(helper: LayerHelper, value: Pair, what: str) -> list[int]:
    found = [value, value] if isinstance(value, int) else list(value)
    if len(found) != 2:
        raise helper.refuse(f"{what} must be a number or two, got {value!r}")
    return found


def _sides(helper: LayerHelper, padding: Pair | str) -> list[int]:
    """Above, below, left, right."""
    if padding == "VALID":
        return [0] * 4
    if isinstance(padding, int):
        return [padding] * 4
    if isinstance(padding, str) or len(padding) not in (2, 4):
        raise helper.refuse(f"padding must be a number, two, four, or 'VALID', got {padding!r}")
    return list(padding) if len(padding) == 4 else [padding[0]] * 2 + [padding[1]] * 2


@layer
def conv2d(
    input: Variable,
    num_filters: int,
    filter_size: Pair,
    stride: Pair = 1,
    padding: Pair | str = 0,
    dilation: Pair = 1,
    groups: int | None = None,
    param_attr: Any = None,
    bias_attr: Any = None,
    use_cudnn: bool = True,
    act: str | None = None,
    name: str | None = None,
    data_format: str = "NCHW",
) -> Variable:
    """A convolution of pictures [N, C, H, W] with its own filters."""
    del use_cudnn
    helper = LayerHelper("conv2d", name)
    known = to_param_attr(param_attr)
    if data_format != "NCHW" or known is None or len(helper.check_input(input).shape) != 4:
        raise helper.refuse(f"takes pictures [N, C, H, W] and a param_attr, got {input}")
    channels, size = input.shape[1], _pair(helper, filter_size, "filter_size")
    count = groups or 1
    if channels % count:
        raise helper.refuse(f"{channels} channels are not divisible by {count} groups")
    first = Normal(0.0, math.sqrt(2.0 / (size[0] * size[1] * channels)))
    shape = [num_filters, channels // count, *size]
    weight = helper.create_parameter(known, shape, input.dtype, default_initializer=first)
    attrs = {
        "strides": _pair(helper, stride, "stride"),
        "paddings": _sides(helper, padding),
        "dilations": _pair(helper, dilation, "dilation"),
        "groups": count,
    }
    out = helper.add("conv2d", {"Input": input, "Filter": weight}, attrs, slot="Output")
    bias = to_param_attr(bias_attr)
    if bias is not None:
        shift = helper.create_parameter(bias, [num_filters], input.dtype, is_bias=True)
        out = helper.add("elementwise_add", {"X": out, "Y": shift}, {"axis": 1})
    return helper.activate(out, act)


@layer
def pool2d(
    input: Variable,
    pool_size: Pair = -1,
    pool_type: str = "max",
    pool_stride: Pair = 1,
    pool_padding: Pair | str = 0,
    global_pooling: bool = False,
    use_cudnn: bool = True,
    ceil_mode: bool = False,
    name: str | None = None,
    exclusive: bool = True,
    data_format: str = "NCHW",
) -> Variable:
    """The largest or the average value of each window of pictures [N, C, H, W]."""
    del use_cudnn
    helper = LayerHelper("pool2d", name)
    if pool_type not in ("max", "avg") or data_format != "NCHW":
        raise helper.refuse(f"pool_type must be 'max' or 'avg', got {pool_type!r}")
    if not global_pooling and pool_size == -1:
        raise helper.refuse("pool_size must be given, unless global_pooling")
    attrs = {
        "pooling_type": pool_type,
        "ksize": _pair(helper, pool_size, "pool_size"),
        "strides": _pair(helper, pool_stride, "pool_stride"),
        "paddings": _sides(helper, pool_padding),
        "global_pooling": global_pooling,
        "ceil_mode": ceil_mode,
        "exclusive": exclusive,
    }
    return helper.add("pool2d", {"X": helper.check_input(input)}, attrs)
