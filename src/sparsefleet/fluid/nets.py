"""Layers that often come together."""

from __future__ import annotations

from typing import Any

from sparsefleet.fluid import layers
from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.layer_helper import layer
from sparsefleet.fluid.layers.pictures import Pair
from sparsefleet.fluid.unknown_names import unknown_names

__getattr__ = unknown_names("fluid.nets")

__all__ = ["sequence_conv_pool", "simple_img_conv_pool"]


@layer
def sequence_conv_pool(
    input: Variable,
    num_filters: int,
    filter_size: int,
    param_attr: Any = None,
    act: str = "sigmoid",
    pool_type: str = "max",
    bias_attr: Any = None,
) -> Variable:
    """`sequence_conv`, then `sequence_pool`."""
    convolved = layers.sequence_conv(
        input, num_filters, filter_size, param_attr=param_attr, bias_attr=bias_attr, act=act
    )
    return layers.sequence_pool(convolved, pool_type)


@layer
def simple_img_conv_pool(
    input: Variable,
    num_filters: int,
    filter_size: Pair,
    pool_size: Pair,
    pool_stride: Pair,
    pool_padding: Pair = 0,
    pool_type: str = "max",
    global_pooling: bool = False,
    conv_stride: Pair = 1,
    conv_padding: Pair = 0,
    conv_dilation: Pair = 1,
    conv_groups: int = 1,
    param_attr: Any = None,
    bias_attr: Any = None,
    act: str | None = None,
    use_cudnn: bool = True,
) -> Variable:
    """`conv2d`, then `pool2d`."""
    del use_cudnn
    convolved = layers.conv2d(
        input,
        num_filters,
        filter_size,
        stride=conv_stride,
        padding=conv_padding,
        dilation=conv_dilation,
        groups=conv_groups,
        param_attr=param_attr,
        bias_attr=bias_attr,
        act=act,
    )
    return layers.pool2d(convolved, pool_size, pool_type, pool_stride, pool_padding, global_pooling)
