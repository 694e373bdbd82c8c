"""Resize, sample and rearrange images and volumes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.lowering.registry import Shape, op
from sparsefleet.fluid.operators.layer_helper import LayerHelper, layer, named
from sparsefleet.fluid.operators.pools import Span, channels_first, channels_last, span
from sparsefleet.fluid.operators.sizes import Sizes, run_sizes, sizes_of

__all__ = [
    "affine_channel",
    "affine_grid",
    "grid_sampler",
    "image_resize",
    "image_resize_short",
    "interpolate",
    "pixel_shuffle",
    "resize_bilinear",
    "resize_nearest",
    "resize_trilinear",
    "shuffle_channel",
    "space_to_depth",
    "temporal_shift",
    "unfold",
]

Tensor = torch.Tensor
Numbers = Sequence[int]


def _interpolated(
    x: Shape, whole: Shape | None, parts: Any, scale: Shape | None, /, **settings: Any
) -> list[Shape]:
    rank = len(x) - 2
    last = settings.get("data_format", "NCHW").endswith("C")
    middle, channels = (x[1:-1], x[-1]) if last else (x[2:], x[1])
    factor = settings.get("scale", 0.0)
    # With both out_shape and actual_shape, Fluid declares out_shape, although a run's shape may
    # differ.
    if scale is not None or (whole is not None and not settings.get("out_shape")):
        sizes: tuple[int, ...] = (-1,) * rank
    elif factor > 0:
        sizes = tuple(-1 if size < 0 else int(size * factor) for size in middle)
    else:
        places = settings.get("out_shape_places", ())
        sizes = tuple(
            -1 if place in places else size for place, size in enumerate(settings["out_shape"])
        )
    del parts
    return [(x[0], *sizes, channels) if last else (x[0], channels, *sizes)]


def _sources(size: int, wanted: int, method: str, corners: bool, mode: int) -> Tensor:
    """Return the source coordinate of each output position, as a float."""
    places = torch.arange(wanted, dtype=torch.float32)
    if corners:
        ratio = (size - 1) / (wanted - 1) if wanted > 1 else 0.0
        return places * ratio
    ratio = size / wanted
    if method != "nearest" and mode == 0:
        return ((places + 0.5) * ratio - 0.5).clamp(min=0.0)
    return places * ratio


@op(
    "interpolate",
    "X OutShapeTensor? OutShapeTensorList* Scale?",
    lod="none",
    infer=_interpolated,
)
def interpolate_op(
    x: Tensor,
    shape_tensor: Tensor | None,
    parts: list[Tensor],
    scale_tensor: Tensor | None,
    *,
    method: str,
    out_shape: Numbers = (),
    out_shape_places: Numbers = (),
    scale: float = 0.0,
    align_corners: bool = True,
    align_mode: int = 1,
    data_format: str = "NCHW",
) -> Tensor:
    """Resize by interpolation, either "linear" between neighbors along each axis, or "nearest"."""
    x = channels_first(x, data_format)
    if scale_tensor is not None:
        scale = float(scale_tensor)
    sizes = run_sizes(out_shape, shape_tensor, parts, out_shape_places)
    if shape_tensor is None and scale > 0:
        sizes = [int(size * scale) for size in x.shape[2:]]
    for axis, wanted in enumerate(sizes, start=2):
        size = x.shape[axis]
        at = _sources(size, wanted, method, align_corners, align_mode)
        if method == "nearest":
            rows = (at + 0.5 if align_corners else at).long().clamp(max=size - 1)
            x = x.index_select(axis, rows)
            continue
        low = at.long().clamp(max=size - 1)
        high = (low + 1).clamp(max=size - 1)
        share = (at - low).reshape(-1, *[1] * (x.dim() - axis - 1)).to(x.dtype)
        x = x.index_select(axis, low) * (1 - share) + x.index_select(axis, high) * share
    return channels_last(x, data_format)


@op("grid_sampler", "X Grid", "Output", lod="none")
def grid_sampler_op(x: Tensor, grid: Tensor) -> Tensor:
    """Interpolate between the four pixels around each position in -1..1; pixels outside are 0."""
    return functional.grid_sample(x, grid, align_corners=True)


def _grid_shape(theta: Shape, whole: Shape | None, **settings: Any) -> list[Shape]:
    sizes = settings.get("output_shape") or [-1] * 4
    del whole
    return [(theta[0], sizes[2], sizes[3], 2)]


@op("affine_grid", "Theta OutputShape?", "Output", lod="none", infer=_grid_shape)
def affine_grid_op(
    theta: Tensor, shape_tensor: Tensor | None, *, output_shape: Numbers = ()
) -> Tensor:
    sizes = run_sizes(output_shape, shape_tensor, [], [])
    return functional.affine_grid(theta, [len(theta), *sizes[1:]], align_corners=True)


@op("affine_channel", "X Scale Bias", lod="none")
def affine_channel_op(
    x: Tensor, scale: Tensor, bias: Tensor, *, data_layout: str = "NCHW"
) -> Tensor:
    """Scale and shift each channel."""
    shape = [1] * x.dim()
    shape[1 if data_layout == "NCHW" else -1] = -1
    return x * scale.reshape(shape) + bias.reshape(shape)


@op("pixel_shuffle", "X", lod="none")
def pixel_shuffle_op(x: Tensor, *, upscale_factor: int) -> Tensor:
    return functional.pixel_shuffle(x, upscale_factor)


@op("space_to_depth", "X", lod="none")
def space_to_depth_op(x: Tensor, *, blocksize: int) -> Tensor:
    """Move blocks of pixels into channels, in the order of Fluid 1.8.5.

    This spreads the channels over blocks of a larger image, then reinterprets the values in the
    shape of the smaller image.
    """
    count, channels, height, width = x.shape
    if height % blocksize or width % blocksize or channels % blocksize**2:
        raise ValueError(
            f"the size {height} x {width} must be divisible by {blocksize}, and the {channels} "
            f"channels by {blocksize**2}"
        )
    blocks = x.reshape(count, blocksize, blocksize, channels // blocksize**2, height, width)
    return blocks.permute(0, 3, 4, 1, 5, 2).reshape(
        count, channels * blocksize**2, height // blocksize, width // blocksize
    )


@op("shuffle_channel", "X", lod="none")
def shuffle_channel_op(x: Tensor, *, group: int) -> Tensor:
    count, channels, *rest = x.shape
    return x.reshape(count, group, channels // group, *rest).transpose(1, 2).reshape(x.shape)


@op("temporal_shift", "X", lod="none")
def temporal_shift_op(x: Tensor, *, seg_num: int, shift_ratio: float = 0.25) -> Tensor:
    """Shift some channels of [N * seg_num, C, H, W] one time step back and some one step
    forward.
    """
    channels = x.shape[1]
    back, ahead = int(channels * shift_ratio), int(channels * 2 * shift_ratio)
    steps = x.reshape(-1, seg_num, *x.shape[1:])
    padded = functional.pad(steps, [0] * 6 + [1, 1])
    parts = [
        padded[:, :seg_num, :back],
        padded[:, 2 : seg_num + 2, back:ahead],
        padded[:, 1 : seg_num + 1, ahead:],
    ]
    return torch.cat(parts, 2).reshape(x.shape)


@op("unfold", "X", "Y", lod="none")
def unfold_op(
    x: Tensor, *, kernel_sizes: Numbers, strides: Numbers, paddings: Numbers, dilations: Numbers
) -> Tensor:
    """Return windows as columns: [N, C * window size, number of windows]. paddings: top, left,
    bottom, right.
    """
    above, left, below, right = paddings
    padded = functional.pad(x, [left, right, above, below])
    return functional.unfold(padded, tuple(kernel_sizes), tuple(dilations), stride=tuple(strides))


_METHODS = {"BILINEAR": ("linear", 2), "NEAREST": ("nearest", 2), "TRILINEAR": ("linear", 3)}
_FORMATS = {2: ("NCHW", "NHWC"), 3: ("NCDHW", "NDHWC")}


@layer
def image_resize(
    input: Variable,
    out_shape: Sizes | None = None,
    scale: float | Variable | None = None,
    name: str | None = None,
    resample: str = "BILINEAR",
    actual_shape: Variable | None = None,
    align_corners: bool = True,
    align_mode: int = 1,
    data_format: str = "NCHW",
) -> Variable:
    """Resize images to `out_shape`, or by the factor `scale`.

    resample: "BILINEAR", "NEAREST", or "TRILINEAR" for volumes.
    align_corners: whether the corners of both images are the same points; otherwise, align_mode 0
        aligns pixel centers, and 1 aligns pixel corners.
    """
    if resample not in _METHODS:
        helper = LayerHelper("image_resize", name)
        raise helper.refuse(f"resample must be one of {', '.join(_METHODS)}, got {resample!r}")
    method, rank = _METHODS[resample]
    helper = LayerHelper(f"{resample.lower()}_interp", name)
    if len(helper.check_input(input).shape) != rank + 2 or data_format not in _FORMATS[rank]:
        raise helper.refuse(f"{resample} needs {' or '.join(_FORMATS[rank])}, got {input}")
    if align_mode not in (0, 1) or (out_shape is None and scale is None):
        raise helper.refuse(
            "out_shape or scale must be given, and align_mode must be 0 or 1, got "
            f"{out_shape!r}, {scale!r} and {align_mode!r}"
        )
    inputs: dict[str, Any] = {"X": input}
    attrs: dict[str, Any] = {
        "method": method,
        "align_corners": align_corners,
        "align_mode": align_mode,
        "data_format": data_format,
    }
    if out_shape is not None:
        found, sizes = sizes_of(helper, "out_shape", out_shape, "OutShape")
        inputs |= found
        attrs |= sizes
    elif isinstance(scale, Variable):
        inputs["Scale"] = scale
    elif not isinstance(scale, (int, float)):
        raise TypeError(f"scale must be a number or a Variable, got {scale!r}")
    elif scale <= 0:
        raise helper.refuse(f"scale must be greater than 0, got {scale}")
    else:
        attrs["scale"] = float(scale)
    if actual_shape is not None:
        inputs["OutShapeTensor"] = helper.check_input(actual_shape, "actual_shape")
    return helper.add("interpolate", inputs, attrs)


interpolate = image_resize


def _linear_resize(title: str, resample: str, doc: str, first_format: str) -> Any:
    @layer
    @named(title, doc)
    def resize(
        input: Variable,
        out_shape: Sizes | None = None,
        scale: float | Variable | None = None,
        name: str | None = None,
        actual_shape: Variable | None = None,
        align_corners: bool = True,
        align_mode: int = 1,
        data_format: str = first_format,
    ) -> Variable:
        how = (actual_shape, align_corners, align_mode, data_format)
        return image_resize(input, out_shape, scale, name, resample, *how)

    return resize


resize_bilinear = _linear_resize(
    "resize_bilinear",
    "BILINEAR",
    "Resize images with bilinear interpolation; see `image_resize`.",
    "NCHW",
)
resize_trilinear = _linear_resize(
    "resize_trilinear",
    "TRILINEAR",
    "Resize volumes with trilinear interpolation; see `image_resize`.",
    "NCDHW",
)


@layer
def resize_nearest(
    input: Variable,
    out_shape: Sizes | None = None,
    scale: float | Variable | None = None,
    name: str | None = None,
    actual_shape: Variable | None = None,
    align_corners: bool = True,
    data_format: str = "NCHW",
) -> Variable:
    """Resize images with nearest-neighbor interpolation; see `image_resize`."""
    return image_resize(
        input, out_shape, scale, name, "NEAREST", actual_shape, align_corners, 1, data_format
    )


@layer
def image_resize_short(input: Variable, out_short_len: int, resample: str = "BILINEAR") -> Variable:
    """Resize images so that the shorter side has `out_short_len` pixels."""
    helper = LayerHelper("image_resize_short")
    sizes = list(helper.check_input(input).shape[2:])
    if len(sizes) != 2 or -1 in sizes:
        raise helper.refuse(f"expected images [N, C, H, W] of known size, got {input}")
    short = min(sizes)
    out_shape = [int(size * out_short_len / short + 0.5) for size in sizes]
    return image_resize(input, out_shape, resample=resample)


@layer
def affine_channel(
    x: Variable,
    scale: Variable | None = None,
    bias: Variable | None = None,
    data_layout: str = "NCHW",
    name: str | None = None,
    act: str | None = None,
) -> Variable:
    """Scale and shift each channel by `scale` and `bias`."""
    helper = LayerHelper("affine_channel", name)
    inputs = {
        "X": helper.check_input(x, "x"),
        "Scale": helper.check_input(scale, "scale"),
        "Bias": helper.check_input(bias, "bias"),
    }
    return helper.activate(helper.add("affine_channel", inputs, {"data_layout": data_layout}), act)


@layer
def affine_grid(
    theta: Variable, out_shape: Variable | Sequence[int], name: str | None = None
) -> Variable:
    """Return sampling positions for `grid_sampler` from matrices theta [N, 2, 3]: [N, H, W, 2]."""
    helper = LayerHelper("affine_grid", name)
    inputs, attrs = {"Theta": helper.check_input(theta, "theta")}, {}
    if isinstance(out_shape, Variable):
        inputs["OutputShape"] = out_shape
    else:
        attrs["output_shape"] = list(out_shape)
    return helper.add("affine_grid", inputs, attrs, slot="Output")


@layer
def grid_sampler(x: Variable, grid: Variable, name: str | None = None) -> Variable:
    """Sample images at positions in -1..1: grid [N, H, W, 2]."""
    helper = LayerHelper("grid_sampler", name)
    inputs = {"X": helper.check_input(x, "x"), "Grid": helper.check_input(grid, "grid")}
    return helper.add("grid_sampler", inputs, slot="Output")


def _add(type: str, x: Variable, name: str | None = None, **attrs: Any) -> Variable:
    helper = LayerHelper(type, name)
    return helper.add(type, {"X": helper.check_input(x, "x")}, attrs)


@layer
def pixel_shuffle(x: Variable, upscale_factor: int) -> Variable:
    """Move channels into pixels: [N, C * r * r, H, W] -> [N, C, H * r, W * r]."""
    return _add("pixel_shuffle", x, upscale_factor=upscale_factor)


@layer
def space_to_depth(x: Variable, blocksize: int, name: str | None = None) -> Variable:
    """Move pixels into channels: [N, C, H, W] -> [N, C * b * b, H / b, W / b]."""
    return _add("space_to_depth", x, name, blocksize=blocksize)


@layer
def shuffle_channel(x: Variable, group: int, name: str | None = None) -> Variable:
    """Interleave the groups' channels: the first of each group, then the second, and so on."""
    return _add("shuffle_channel", x, name, group=group)


@layer
def temporal_shift(
    x: Variable, seg_num: int, shift_ratio: float = 0.25, name: str | None = None
) -> Variable:
    """Shift some channels of [N * seg_num, C, H, W] one time step back and some one step
    forward.
    """
    return _add("temporal_shift", x, name, seg_num=seg_num, shift_ratio=shift_ratio)


@layer
def unfold(
    x: Variable,
    kernel_sizes: Span,
    strides: Span = 1,
    paddings: Span = 0,
    dilations: Span = 1,
    name: str | None = None,
) -> Variable:
    """Return windows of images as columns: [N, C * window size, number of windows]."""
    helper = LayerHelper("unfold", name)
    borders = [paddings] * 4 if isinstance(paddings, int) else list(paddings)
    if len(borders) == 2:
        borders *= 2
    if len(borders) != 4:
        raise helper.refuse(f"paddings must be one, two or four numbers, got {paddings!r}")
    attrs = {
        "kernel_sizes": span(helper, kernel_sizes, 2, "kernel_sizes"),
        "strides": span(helper, strides, 2, "strides"),
        "paddings": borders,
        "dilations": span(helper, dilations, 2, "dilations"),
    }
    return helper.add("unfold", {"X": helper.check_input(x, "x")}, attrs, slot="Y")
