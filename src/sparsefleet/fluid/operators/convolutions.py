"""Convolutions and transposed convolutions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.framework.initializer import Normal
from sparsefleet.fluid.framework.param_attr import to_param_attr
from sparsefleet.fluid.lowering.registry import Shape, float_rule, op
from sparsefleet.fluid.operators.layer_helper import LayerHelper, layer, named
from sparsefleet.fluid.operators.pools import (
    FORMATS,
    Padding,
    Span,
    border,
    channels_first,
    channels_last,
    check_format,
    pad_sides,
    span,
    window_sides,
)

__all__ = ["conv2d", "conv2d_transpose", "conv3d", "conv3d_transpose"]

Tensor = torch.Tensor
Numbers = Sequence[int]

_CONVOLVE: dict[int, Callable[..., Tensor]] = {2: functional.conv2d, 3: functional.conv3d}
_TRANSPOSE: dict[int, Callable[..., Tensor]] = {
    2: functional.conv_transpose2d,
    3: functional.conv_transpose3d,
}


def _convolved(
    x: Shape,
    weight: Shape,
    *,
    strides: Numbers,
    paddings: Numbers | str,
    dilations: Numbers,
    groups: int = 1,
    data_format: str = "NCHW",
    **_: Any,
) -> list[Shape] | None:
    is_last = data_format in ("NHWC", "NDHWC")
    sizes = list(x[1:-1] if is_last else x[2:])
    if len(x) != len(weight) or x[-1 if is_last else 1] != weight[1] * groups:
        return None
    for axis, (size, stride) in enumerate(zip(sizes, strides, strict=True)):
        span = dilations[axis] * (weight[axis + 2] - 1) + 1
        if paddings == "SAME":
            padding = max((-(-size // stride) - 1) * stride + span - size, 0)
        else:
            padding = 0 if isinstance(paddings, str) else sum(paddings[2 * axis : 2 * axis + 2])
        if 0 <= size < span - padding:
            return None
        sizes[axis] = -1 if size < 0 else (size + padding - span) // stride + 1
    channels = weight[0]
    return [(x[0], *sizes, channels) if is_last else (x[0], channels, *sizes)]


def _convolution(type: str, rank: int) -> None:
    @op(type, "Input Filter", "Output", lod="none", shape=float_rule(_convolved))
    def run(
        x: Tensor,
        weight: Tensor,
        *,
        strides: Numbers,
        paddings: Numbers | str,
        dilations: Numbers,
        groups: int = 1,
        data_format: str = "NCHW",
    ) -> Tensor:
        x = channels_first(x, data_format)
        spans = [d * (k - 1) + 1 for k, d in zip(weight.shape[2:], dilations, strict=True)]
        x = pad_sides(x, window_sides(x, paddings, spans, strides))
        out = _CONVOLVE[rank](x, weight, None, tuple(strides), 0, tuple(dilations), groups)
        return channels_last(out, data_format)


_convolution("conv2d", 2)
_convolution("depthwise_conv2d", 2)
_convolution("conv3d", 3)


def _transposed(type: str, rank: int) -> None:
    @op(type, "Input Filter", "Output", lod="none")
    def run(
        x: Tensor,
        weight: Tensor,
        *,
        strides: Numbers,
        paddings: Numbers | str,
        dilations: Numbers,
        groups: int = 1,
        output_size: Numbers = (),
        data_format: str = "NCHW",
    ) -> Tensor:
        """Compute the full result, then crop its borders: by the padding and, at the end, to
        output_size.
        """
        x = channels_first(x, data_format)
        spans = [d * (k - 1) + 1 for k, d in zip(weight.shape[2:], dilations, strict=True)]
        sides = window_sides(x, paddings, spans, strides)
        sizes = [
            (size - 1) * stride + span - before - after
            for size, stride, span, (before, after) in zip(
                x.shape[2:], strides, spans, sides, strict=True
            )
        ]
        wanted = list(output_size) or sizes
        if any(
            not 0 <= w - s < stride for w, s, stride in zip(wanted, sizes, strides, strict=True)
        ):
            raise ValueError(
                f"output_size must be at least {sizes} and exceed it by less than the stride "
                f"{list(strides)}, got {wanted}"
            )
        extra = [w - s for w, s in zip(wanted, sizes, strict=True)]
        settings: dict[str, Any] = {"groups": groups, "dilation": tuple(dilations)}
        out = _TRANSPOSE[rank](x, weight, stride=tuple(strides), **settings)
        out = pad_sides(
            out,
            [(-before, more - after) for (before, after), more in zip(sides, extra, strict=True)],
        )
        return channels_last(out, data_format)


_transposed("conv2d_transpose", 2)
_transposed("depthwise_conv2d_transpose", 2)
_transposed("conv3d_transpose", 3)


def _add_bias(helper: LayerHelper, out: Variable, attr: Any, data_format: str) -> Variable:
    known = to_param_attr(attr)
    if known is None:
        return out
    axis = len(out.shape) - 1 if data_format.endswith("C") else 1
    shift = helper.create_parameter(known, [out.shape[axis]], out.dtype, is_bias=True)
    return helper.add("elementwise_add", {"X": out, "Y": shift}, {"axis": axis})


class _Windows(NamedTuple):
    """The windows of a convolution, as given by a layer's arguments."""

    stride: Span
    padding: Padding
    dilation: Span
    groups: int | None
    data_format: str

    def attrs(self, helper: LayerHelper, rank: int) -> dict[str, Any]:
        """Return the operator's attrs, with one number per axis."""
        return {
            "strides": span(helper, self.stride, rank, "stride"),
            "paddings": border(helper, self.padding, rank, self.data_format),
            "dilations": span(helper, self.dilation, rank, "dilation"),
            "groups": self.groups or 1,
            "data_format": self.data_format,
        }


def _num_channels(input: Variable, data_format: str) -> int:
    """Return the number of channels in images, or 0 for anything else."""
    return input.shape[-1 if data_format == "NHWC" else 1] if len(input.shape) == 4 else 0


def _convolve(
    helper: LayerHelper,
    input: Variable,
    num_filters: int,
    filter_size: Span,
    windows: _Windows,
    param_attr: Any,
    bias_attr: Any,
    act: str | None,
) -> Variable:
    rank = 3 if helper.layer_type == "conv3d" else 2
    data_format = windows.data_format
    channels = check_format(helper, data_format, helper.check_input(input).shape, rank)
    known = to_param_attr(param_attr)
    groups = windows.groups or 1
    if known is None:
        raise helper.refuse("param_attr cannot be False")
    if channels < 1 or channels % groups or num_filters % groups:
        raise helper.refuse(
            f"{channels} channels and {num_filters} filters must be divisible by {groups} groups"
        )
    size = span(helper, filter_size, rank, "filter_size")
    first = Normal(0.0, math.sqrt(2.0 / (math.prod(size) * channels)))
    shape = [num_filters, channels // groups, *size]
    weight = helper.create_parameter(known, shape, input.dtype, default_initializer=first)
    inputs = {"Input": input, "Filter": weight}
    attrs = windows.attrs(helper, rank)
    out = helper.add(helper.layer_type, inputs, attrs, slot="Output")
    return helper.activate(_add_bias(helper, out, bias_attr, data_format), act)


def _conv_layer(rank: int, doc: str) -> Callable[..., Variable]:
    @layer
    @named(f"conv{rank}d", doc)
    def conv(
        input: Variable,
        num_filters: int,
        filter_size: Span,
        stride: Span = 1,
        padding: Padding = 0,
        dilation: Span = 1,
        groups: int | None = None,
        param_attr: Any = None,
        bias_attr: Any = None,
        use_cudnn: bool = True,
        act: str | None = None,
        name: str | None = None,
        data_format: str = FORMATS[rank][0],
    ) -> Variable:
        windows = _Windows(stride, padding, dilation, groups, data_format)
        channels = _num_channels(input, data_format) if rank == 2 else -1
        is_depthwise = channels == groups and num_filters % channels == 0 and not use_cudnn
        helper = LayerHelper("depthwise_conv2d" if is_depthwise else f"conv{rank}d", name)
        return _convolve(
            helper, input, num_filters, filter_size, windows, param_attr, bias_attr, act
        )

    return conv


conv2d = _conv_layer(
    2,
    """Convolve images [N, C, H, W] with learned filters.

    padding: a number, [height, width], [top, bottom, left, right], pairs for each axis, "SAME" or
    "VALID".
    """,
)
conv3d = _conv_layer(3, "Convolve volumes [N, C, D, H, W] with learned filters.")


def _transpose(
    helper: LayerHelper,
    input: Variable,
    num_filters: int,
    filter_size: Span | None,
    output_size: Span | None,
    windows: _Windows,
    attrs_of_parameters: tuple[Any, Any],
    act: str | None,
) -> Variable:
    rank = 3 if helper.layer_type == "conv3d_transpose" else 2
    data_format = windows.data_format
    channels = check_format(helper, data_format, helper.check_input(input).shape, rank)
    groups = windows.groups or 1
    known = to_param_attr(attrs_of_parameters[0])
    if known is None:
        raise helper.refuse("param_attr cannot be False")
    if channels < 1 or channels % groups:
        raise helper.refuse(f"{channels} channels must be divisible by {groups} groups")
    attrs = windows.attrs(helper, rank)
    wanted = [] if output_size is None else span(helper, output_size, rank, "output_size")
    if filter_size is None:
        if not wanted:
            raise helper.refuse("output_size or filter_size must be given")
        size = _filter_of(helper, input, wanted, attrs)
    else:
        size = span(helper, filter_size, rank, "filter_size")
    shape = [channels, num_filters // groups, *size]
    weight = helper.create_parameter(known, shape, input.dtype)
    inputs = {"Input": input, "Filter": weight}
    attrs["output_size"] = wanted
    out = helper.add(helper.layer_type, inputs, attrs, slot="Output")
    return helper.activate(_add_bias(helper, out, attrs_of_parameters[1], data_format), act)


def _filter_of(
    helper: LayerHelper, input: Variable, wanted: Sequence[int], attrs: Mapping[str, Any]
) -> list[int]:
    """Return the filter size that produces the requested output size."""
    sizes = input.shape[1:-1] if attrs["data_format"].endswith("C") else input.shape[2:]
    paddings = attrs["paddings"]
    if isinstance(paddings, str) or -1 in sizes:
        raise helper.refuse(
            f"filter_size is required: it cannot be inferred from {input} with padding {paddings!r}"
        )
    borders = [paddings[i] + paddings[i + 1] for i in range(0, len(paddings), 2)]
    return [
        (out - (size - 1) * stride + both - 1) // dilation + 1
        for out, size, stride, dilation, both in zip(
            wanted, sizes, attrs["strides"], attrs["dilations"], borders, strict=True
        )
    ]


def _transpose_layer(rank: int, doc: str) -> Callable[..., Variable]:
    @layer
    @named(f"conv{rank}d_transpose", doc)
    def conv_transpose(
        input: Variable,
        num_filters: int,
        output_size: Span | None = None,
        filter_size: Span | None = None,
        padding: Padding = 0,
        stride: Span = 1,
        dilation: Span = 1,
        groups: int | None = None,
        param_attr: Any = None,
        bias_attr: Any = None,
        use_cudnn: bool = True,
        act: str | None = None,
        name: str | None = None,
        data_format: str = FORMATS[rank][0],
    ) -> Variable:
        windows = _Windows(stride, padding, dilation, groups, data_format)
        channels = _num_channels(input, data_format) if rank == 2 else -1
        is_depthwise = channels == groups == num_filters and not use_cudnn
        kind = f"conv{rank}d_transpose"
        helper = LayerHelper(f"depthwise_{kind}" if is_depthwise else kind, name)
        parameters = (param_attr, bias_attr)
        return _transpose(
            helper, input, num_filters, filter_size, output_size, windows, parameters, act
        )

    return conv_transpose


conv2d_transpose = _transpose_layer(
    2, "Apply a transposed convolution, which upsamples images by the stride."
)
conv3d_transpose = _transpose_layer(3, "Apply a transposed convolution to volumes.")
