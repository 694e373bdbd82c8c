"""Pictures and volumes [N, C, ...] of other sizes, and taken at other places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from sparsefleet.fluid.lowering.registry import Shape, op
from sparsefleet.fluid.ops.sizes import run_sizes
from sparsefleet.fluid.ops.windows import channels_first, channels_last

Tensor = torch.Tensor
Numbers = Sequence[int]


def _interpolated(
    x: Shape, whole: Shape | None, parts: Any, scale: Shape | None, /, **settings: Any
) -> list[Shape]:
    rank = len(x) - 2
    last = settings.get("data_format", "NCHW").endswith("C")
    middle, channels = (x[1:-1], x[-1]) if last else (x[2:], x[1])
    factor = settings.get("scale", 0.0)
    if whole is not None or scale is not None:
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
    """Where each place of the result is in the source, as a float."""
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
def interpolate(
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
    """method: "linear" between neighbours along each axis, or "nearest"."""
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
def grid_sampler(x: Tensor, grid: Tensor) -> Tensor:
    """Between the four pixels around each place in -1..1; 0 beyond the borders."""
    return functional.grid_sample(x, grid, align_corners=True)


def _grid_shape(theta: Shape, whole: Shape | None, **settings: Any) -> list[Shape]:
    sizes = settings.get("output_shape") or [-1] * 4
    del whole
    return [(theta[0], sizes[2], sizes[3], 2)]


@op("affine_grid", "Theta OutputShape?", "Output", lod="none", infer=_grid_shape)
def affine_grid(
    theta: Tensor, shape_tensor: Tensor | None, *, output_shape: Numbers = ()
) -> Tensor:
    sizes = run_sizes(output_shape, shape_tensor, [], [])
    return functional.affine_grid(theta, sizes, align_corners=True)


@op("affine_channel", "X Scale Bias", lod="none")
def affine_channel(x: Tensor, scale: Tensor, bias: Tensor, *, data_layout: str = "NCHW") -> Tensor:
    """Each channel times a number plus another."""
    shape = [1] * x.dim()
    shape[1 if data_layout == "NCHW" else -1] = -1
    return x * scale.reshape(shape) + bias.reshape(shape)


@op("pixel_shuffle", "X", lod="none")
def pixel_shuffle(x: Tensor, *, upscale_factor: int) -> Tensor:
    return functional.pixel_shuffle(x, upscale_factor)


@op("space_to_depth", "X", lod="none")
def space_to_depth(x: Tensor, *, blocksize: int) -> Tensor:
    """Blocks of pixels as channels, in the order of 1.8.5.

    That spreads the channels over blocks of a larger picture, and then reads its numbers in the
    shape of the smaller one.
    """
    count, channels, height, width = x.shape
    if height % blocksize or width % blocksize or channels % blocksize**2:
        raise ValueError(
            f"{height} x {width} must be divisible by {blocksize}, and {channels} channels by "
            f"{blocksize**2}"
        )
    blocks = x.reshape(count, blocksize, blocksize, channels // blocksize**2, height, width)
    return blocks.permute(0, 3, 4, 1, 5, 2).reshape(
        count, channels * blocksize**2, height // blocksize, width // blocksize
    )


@op("shuffle_channel", "X", lod="none")
def shuffle_channel(x: Tensor, *, group: int) -> Tensor:
    count, channels, *rest = x.shape
    return x.reshape(count, group, channels // group, *rest).transpose(1, 2).reshape(x.shape)


@op("temporal_shift", "X", lod="none")
def temporal_shift(x: Tensor, *, seg_num: int, shift_ratio: float = 0.25) -> Tensor:
    """Some channels a step back in time, some a step ahead: [N * seg_num, C, H, W]."""
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
def unfold(
    x: Tensor, *, kernel_sizes: Numbers, strides: Numbers, paddings: Numbers, dilations: Numbers
) -> Tensor:
    """Windows as columns: [N, C * window, windows]. paddings: above, left, below, right."""
    above, left, below, right = paddings
    padded = functional.pad(x, [left, right, above, below])
    return functional.unfold(padded, tuple(kernel_sizes), tuple(dilations), stride=tuple(strides))
