"""Common combinations of layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparsefleet.fluid import layers
from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.operators.layer_helper import LayerHelper, layer
from sparsefleet.fluid.operators.pools import Span
from sparsefleet.fluid.paths import unknown_names

__getattr__ = unknown_names("fluid.nets")

__all__ = [
    "glu",
    "img_conv_group",
    "scaled_dot_product_attention",
    "sequence_conv_pool",
    "simple_img_conv_pool",
]


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
    """Apply `sequence_conv`, then `sequence_pool`."""
    convolved = layers.sequence_conv(
        input, num_filters, filter_size, param_attr=param_attr, bias_attr=bias_attr, act=act
    )
    return layers.sequence_pool(convolved, pool_type)


@layer
def simple_img_conv_pool(
    input: Variable,
    num_filters: int,
    filter_size: Span,
    pool_size: Span,
    pool_stride: Span,
    pool_padding: Span = 0,
    pool_type: str = "max",
    global_pooling: bool = False,
    conv_stride: Span = 1,
    conv_padding: Span = 0,
    conv_dilation: Span = 1,
    conv_groups: int = 1,
    param_attr: Any = None,
    bias_attr: Any = None,
    act: str | None = None,
    use_cudnn: bool = True,
) -> Variable:
    """Apply `conv2d`, then `pool2d`."""
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
        use_cudnn=use_cudnn,
        act=act,
    )
    return layers.pool2d(convolved, pool_size, pool_type, pool_stride, pool_padding, global_pooling)


@layer
def img_conv_group(
    input: Variable,
    conv_num_filter: Sequence[int],
    pool_size: Span,
    conv_padding: Any = 1,
    conv_filter_size: Any = 3,
    conv_act: str | None = None,
    param_attr: Any = None,
    conv_with_batchnorm: bool | Sequence[bool] = False,
    conv_batchnorm_drop_rate: float | Sequence[float] = 0.0,
    pool_stride: Span = 1,
    pool_type: str = "max",
    use_cudnn: bool = True,
) -> Variable:
    """Apply several `conv2d` layers, each with optional `batch_norm` and `dropout`, then `pool2d`.

    conv_padding and later arguments: one value for all convolutions, or a list with one value each.
    """
    helper = LayerHelper("img_conv_group")
    count = len(conv_num_filter)

    def each(value: Any, what: str) -> list[Any]:
        found = list(value) if isinstance(value, (list, tuple)) else [value] * count
        if len(found) != count:
            raise helper.refuse(
                f"there are {count} convolutions, but {what} has {len(found)} values"
            )
        return found

    out = input
    with_norm = each(conv_with_batchnorm, "conv_with_batchnorm")
    for filters, padding, size, attr, norm, drop in zip(
        conv_num_filter,
        each(conv_padding, "conv_padding"),
        each(conv_filter_size, "conv_filter_size"),
        each(param_attr, "param_attr"),
        with_norm,
        each(conv_batchnorm_drop_rate, "conv_batchnorm_drop_rate"),
        strict=True,
    ):
        act = None if norm else conv_act
        out = layers.conv2d(
            out, filters, size, padding=padding, param_attr=attr, act=act, use_cudnn=use_cudnn
        )
        if norm:
            out = layers.batch_norm(out, act=conv_act)
            out = layers.dropout(out, drop) if abs(drop) > 1e-5 else out
    return layers.pool2d(out, pool_size, pool_type, pool_stride)


@layer
def glu(input: Variable, dim: int = -1) -> Variable:
    """Multiply one half along an axis by the sigmoid of the other (Dauphin et al., 2017)."""
    first, second = layers.split(input, 2, dim=dim)
    return layers.elementwise_mul(first, layers.sigmoid(second))


@layer
def scaled_dot_product_attention(
    queries: Variable,
    keys: Variable,
    values: Variable,
    num_heads: int = 1,
    dropout_rate: float = 0.0,
) -> Variable:
    """Return softmax(q k^T / sqrt(width)) v for [B, Tq, D], [B, Tk, D] and [B, Tk, Dv].

    num_heads: if more than 1, project q, k and v, and attend separately in each part of their
        width.
    """
    helper = LayerHelper("scaled_dot_product_attention")
    inputs = [queries, keys, values]
    if any(len(helper.check_input(x).shape) != 3 for x in inputs):
        raise helper.refuse(
            f"queries, keys and values must be [B, T, D], got {queries}, {keys}, {values}"
        )
    if queries.shape[-1] != keys.shape[-1] or keys.shape[1] != values.shape[1]:
        raise helper.refuse(
            "queries and keys must have the same width, and keys and values the same length, got "
            f"{queries}, {keys}, {values}"
        )
    if keys.shape[-1] % num_heads or values.shape[-1] % num_heads:
        raise helper.refuse(
            f"widths must be divisible by {num_heads} heads, got {keys.shape[-1]} for keys and "
            f"{values.shape[-1]} for values"
        )
    width = keys.shape[-1] // num_heads
    if num_heads > 1:
        inputs = [layers.fc(x, x.shape[-1], num_flatten_dims=2) for x in inputs]
        inputs = [
            layers.transpose(
                layers.reshape(x, [0, 0, num_heads, x.shape[-1] // num_heads]), [0, 2, 1, 3]
            )
            for x in inputs
        ]
    scores = layers.matmul(layers.scale(inputs[0], width**-0.5), inputs[1], transpose_y=True)
    weights = layers.softmax(scores)
    if dropout_rate:
        weights = layers.dropout(weights, dropout_rate, is_test=False)
    out = layers.matmul(weights, inputs[2])
    if num_heads == 1:
        return out
    return layers.reshape(layers.transpose(out, [0, 2, 1, 3]), [0, 0, values.shape[-1]])
