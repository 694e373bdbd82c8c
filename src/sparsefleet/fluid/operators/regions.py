"""Extract the features of boxes from feature maps.

In shapes, R is the number of boxes, C the number of channels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.lowering.registry import Shape, op
from sparsefleet.fluid.operators.boxes import parts_of
from sparsefleet.fluid.operators.layer_helper import LayerHelper, layer, op_settings

__all__ = ["psroi_pool", "roi_align", "roi_pool", "similarity_focus"]

Tensor = torch.Tensor
Lods = list[Any]


def _pooled(x: Shape, rois: Shape, lod: Any = None, **settings: Any) -> list[Shape]:
    del lod
    return [(rois[0], x[1], settings["pooled_height"], settings["pooled_width"])]


def boxes_in_pictures(x: Tensor, rois: Tensor, lod: Any, lengths: Tensor | None) -> list[int]:
    """Return the index of the image that each box belongs to."""
    if lengths is not None:
        offsets = [0, *lengths.reshape(-1).tolist()]
        if lengths.numel() == len(x) + 1:  # these are already offsets
            offsets = lengths.reshape(-1).tolist()
        else:
            offsets = torch.tensor(offsets).cumsum(0).tolist()
        parts = list(pairwise(offsets))
    else:
        parts = parts_of(lod, len(rois))
    return [number for number, (begin, end) in enumerate(parts) for _ in range(begin, end)]


def _sampled(picture: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Interpolate values [C, ...] of an image [C, H, W]. Positions outside the image yield 0."""
    height, width = picture.shape[1:]
    inside = (rows >= -1) & (rows <= height) & (columns >= -1) & (columns <= width)
    rows, columns = rows.clamp(0, height - 1), columns.clamp(0, width - 1)
    top, left = rows.floor().long(), columns.floor().long()
    below, right = (top + 1).clamp(max=height - 1), (left + 1).clamp(max=width - 1)
    down, across = rows - top, columns - left
    value = (
        picture[:, top, left] * (1 - down) * (1 - across)
        + picture[:, top, right] * (1 - down) * across
        + picture[:, below, left] * down * (1 - across)
        + picture[:, below, right] * down * across
    )
    return value * inside


@op("roi_align", "X ROIs RoisLod?", lod="function", infer=_pooled)
def roi_align_op(
    x: Tensor,
    rois: Tensor,
    lengths: Tensor | None,
    *,
    lods: Lods,
    pooled_height: int,
    pooled_width: int,
    spatial_scale: float,
    sampling_ratio: int,
) -> tuple[Tensor, Any]:
    """Average the values at sample points in each part of a box: [R, C, height, width]."""
    made = []
    for number, roi in zip(boxes_in_pictures(x, rois, lods[1], lengths), rois, strict=True):
        left, top, right, bottom = (float(one) * spatial_scale for one in roi)
        wide, high = max(right - left, 1.0), max(bottom - top, 1.0)
        step_y, step_x = high / pooled_height, wide / pooled_width
        many_y = sampling_ratio if sampling_ratio > 0 else math.ceil(step_y)
        many_x = sampling_ratio if sampling_ratio > 0 else math.ceil(step_x)
        rows = top + (torch.arange(pooled_height * many_y) + 0.5) * (step_y / many_y)
        columns = left + (torch.arange(pooled_width * many_x) + 0.5) * (step_x / many_x)
        grid = torch.meshgrid(rows.to(x.dtype), columns.to(x.dtype), indexing="ij")
        values = _sampled(x[number], *grid)
        shape = (x.shape[1], pooled_height, many_y, pooled_width, many_x)
        made.append(values.reshape(shape).mean((2, 4)))
    empty = x.new_zeros((0, x.shape[1], pooled_height, pooled_width))
    return (torch.stack(made) if made else empty), ()


def _bins(begin: int, end: int, count: int, limit: int) -> list[tuple[int, int]]:
    """Return the start and end of `count` parts of a range, within 0..limit."""
    size = max(end - begin + 1, 1) / count
    found = []
    for number in range(count):
        first = min(max(math.floor(number * size) + begin, 0), limit)
        last = min(max(math.ceil((number + 1) * size) + begin, 0), limit)
        found.append((first, last))
    return found


@op("roi_pool", "X ROIs RoisLod?", lod="function", infer=_pooled)
def roi_pool_op(
    x: Tensor,
    rois: Tensor,
    lengths: Tensor | None,
    *,
    lods: Lods,
    pooled_height: int,
    pooled_width: int,
    spatial_scale: float,
) -> tuple[Tensor, Any]:
    """Return the maximum in each part of a box, or 0 if it is empty: [R, C, height, width]."""
    made = []
    for number, roi in zip(boxes_in_pictures(x, rois, lods[1], lengths), rois, strict=True):
        left, top, right, bottom = (rounded(float(one) * spatial_scale) for one in roi)
        rows = _bins(top, bottom, pooled_height, x.shape[2])
        columns = _bins(left, right, pooled_width, x.shape[3])
        parts = [
            x[number][:, a:b, c:d].amax((1, 2)) if b > a and d > c else x.new_zeros(x.shape[1])
            for a, b in rows
            for c, d in columns
        ]
        made.append(torch.stack(parts, 1).reshape(-1, pooled_height, pooled_width))
    empty = x.new_zeros((0, x.shape[1], pooled_height, pooled_width))
    return (torch.stack(made) if made else empty), ()


def rounded(value: float) -> int:
    """Round half away from 0, as C does."""
    return math.floor(value + 0.5) if value >= 0 else math.ceil(value - 0.5)


def _position_shape(x: Shape, rois: Shape, **settings: Any) -> list[Shape]:
    del x
    sizes = settings["pooled_height"], settings["pooled_width"]
    return [(rois[0], settings["output_channels"], *sizes)]


@op("psroi_pool", "X ROIs", lod="function", infer=_position_shape)
def psroi_pool_op(
    x: Tensor,
    rois: Tensor,
    *,
    lods: Lods,
    output_channels: int,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
) -> tuple[Tensor, Any]:
    """Average each part of a box, using separate channels for each part."""
    made = []
    channels = x.reshape(len(x), output_channels, pooled_height, pooled_width, *x.shape[2:])
    for number, roi in zip(boxes_in_pictures(x, rois, lods[1], None), rois, strict=True):
        left, top = (rounded(float(one)) * spatial_scale for one in roi[:2])
        right, bottom = ((rounded(float(one)) + 1.0) * spatial_scale for one in roi[2:])
        step_y = max(bottom - top, 0.1) / pooled_height
        step_x = max(right - left, 0.1) / pooled_width
        out = x.new_zeros((output_channels, pooled_height, pooled_width))
        for row in range(pooled_height):
            a = min(max(math.floor(row * step_y + top), 0), x.shape[2])
            b = min(max(math.ceil((row + 1) * step_y + top), 0), x.shape[2])
            for column in range(pooled_width):
                c = min(max(math.floor(column * step_x + left), 0), x.shape[3])
                d = min(max(math.ceil((column + 1) * step_x + left), 0), x.shape[3])
                if b > a and d > c:
                    part = channels[number, :, row, column, a:b, c:d]
                    out = out.index_put(
                        (
                            torch.arange(output_channels),
                            torch.tensor(row),
                            torch.tensor(column),
                        ),
                        part.mean((1, 2)),
                    )
        made.append(out)
    return torch.stack(made), ()


@op("similarity_focus", "X", lod="none", infer=lambda x, **_: [x])
def similarity_focus_op(x: Tensor, *, axis: int, indexes: Sequence[int]) -> Tensor:
    """Mark the largest values in slices along an axis, at most one per row and column."""
    made = torch.zeros_like(x)
    moved, marks = x.movedim(axis, 1), made.movedim(axis, 1)
    for number, picture in enumerate(moved):
        for index in indexes:
            left = picture[index].clone()
            for _ in range(min(left.shape)):
                row, column = divmod(int(left.argmax()), left.shape[1])
                marks[number, :, row, column] = 1
                left[row], left[:, column] = -torch.inf, -torch.inf
    return made


@layer
def similarity_focus(
    input: Variable, axis: int, indexes: Sequence[int], name: str | None = None
) -> Variable:
    """Return a mask of the dominant positions of input [N, ., ., .] in slices along an axis."""
    helper = LayerHelper("similarity_focus", name)
    for what, value, kind in (("axis", axis, int), ("indexes", indexes, list)):
        if not isinstance(value, kind):
            raise TypeError(f"{what} must be of type {kind.__name__}, got {value!r}")
    if axis not in (1, 2, 3):
        raise ValueError(f"axis must be 1, 2 or 3, got {axis}")
    if not indexes:
        raise ValueError("indexes must not be empty")
    attrs = {"axis": axis, "indexes": list(indexes)}
    dtype = helper.check_input(input).dtype
    if dtype not in ("float32", "float64"):
        raise TypeError(f"input must be float32 or float64, got {dtype}")
    return helper.add("similarity_focus", {"X": input}, attrs, dtype=dtype)


@layer
def roi_align(
    input: Variable,
    rois: Variable,
    pooled_height: int = 1,
    pooled_width: int = 1,
    spatial_scale: float = 1.0,
    sampling_ratio: int = -1,
    name: str | None = None,
    rois_lod: Variable | None = None,
) -> Variable:
    """Average the values at sample points in each part of a box: [R, C, height, width].

    spatial_scale: the size of the feature map divided by the size of the image.
    """
    helper = LayerHelper("roi_align", name)
    attrs = op_settings("roi_align", locals())
    inputs = {"X": input, "ROIs": rois, "RoisLod": rois_lod}
    return helper.add("roi_align", inputs, attrs, dtype=input.dtype)


@layer
def roi_pool(
    input: Variable,
    rois: Variable,
    pooled_height: int = 1,
    pooled_width: int = 1,
    spatial_scale: float = 1.0,
    rois_lod: Variable | None = None,
) -> Variable:
    """Return the maximum in each part of a box: [R, C, height, width]."""
    helper = LayerHelper("roi_pool")
    attrs = op_settings("roi_pool", locals())
    inputs = {"X": helper.check_input(input), "ROIs": rois, "RoisLod": rois_lod}
    return helper.add("roi_pool", inputs, attrs, dtype=input.dtype)


@layer
def psroi_pool(
    input: Variable,
    rois: Variable,
    output_channels: int,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    name: str | None = None,
) -> Variable:
    """Average each part of a box, using separate channels for each part."""
    helper = LayerHelper("psroi_pool", name)
    for what, value, kind in (
        ("output_channels", output_channels, int),
        ("spatial_scale", spatial_scale, float),
        ("pooled_height", pooled_height, int),
        ("pooled_width", pooled_width, int),
    ):
        if not isinstance(value, kind):
            raise TypeError(f"{what} must be of type {kind.__name__}, got {value!r}")
    attrs = op_settings("psroi_pool", locals())
    inputs = {"X": helper.check_input(input), "ROIs": helper.check_input(rois, "rois")}
    return helper.add("psroi_pool", inputs, attrs, dtype=input.dtype)
