"""Layers that sample feature maps at computed positions, such as deformable convolutions.

In shapes, N is the number of images, C the number of channels, R the number of boxes, and H and W
the size of a map.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.framework.initializer import Normal
from sparsefleet.fluid.framework.param_attr import to_param_attr
from sparsefleet.fluid.lowering.registry import Shape, op
from sparsefleet.fluid.operators.layer_helper import LayerHelper, layer, op_settings
from sparsefleet.fluid.operators.regions import boxes_in_pictures, rounded

__all__ = [
    "deformable_conv",
    "deformable_roi_pooling",
    "prroi_pool",
    "roi_perspective_transform",
]

Tensor = torch.Tensor
Lods = list[Any]


def _interpolated(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Interpolate maps x [..., H, W] at positions [..., P]; points outside are treated as 0."""
    height, width = x.shape[-2:]
    flat = x.reshape(*x.shape[:-2], height * width)
    top, left = rows.floor(), columns.floor()
    total = torch.zeros_like(rows)
    for down in (0, 1):
        for across in (0, 1):
            row, column = top + down, left + across
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            place = row.clamp(0, height - 1).long() * width + column.clamp(0, width - 1).long()
            weight = (1 - (rows - row).abs()) * (1 - (columns - column).abs())
            total = total + flat.gather(-1, place) * weight * inside
    return total


def _conv_shape(x: Shape, offset: Shape, *others: Any, **settings: Any) -> list[Shape]:
    del settings
    return [(x[0], others[-1][0], *offset[2:])]


@op("deformable_conv", "Input Offset Mask? Filter", "Output", lod="none", infer=_conv_shape)
@op("deformable_conv_v1", "Input Offset Mask? Filter", "Output", lod="none", infer=_conv_shape)
def deformable_conv_op(
    x: Tensor,
    offset: Tensor,
    mask: Tensor | None,
    w: Tensor,
    *,
    strides: Sequence[int],
    paddings: Sequence[int],
    dilations: Sequence[int],
    groups: int | None = 1,
    deformable_groups: int | None = 1,
) -> Tensor:
    """Convolve at positions moved by `offset` (row and column of each point), weighted by
    `mask`."""
    images, channels = x.shape[:2]
    count, kernel = w.shape[0], w.shape[2:]
    groups, parts = groups or 1, deformable_groups or 1
    points, sizes = kernel[0] * kernel[1], offset.shape[2:]
    moved = offset.reshape(images, parts, points, 2, *sizes)
    bases = []
    for axis in (0, 1):
        first = torch.arange(sizes[axis]) * strides[axis] - paddings[axis]
        inner = torch.arange(kernel[axis]) * dilations[axis]
        bases.append((first.to(x.dtype), inner.to(x.dtype)))
    base_rows = (bases[0][1][:, None, None, None] + bases[0][0][None, None, :, None]).expand(
        kernel[0], kernel[1], *sizes
    )
    base_columns = (bases[1][1][None, :, None, None] + bases[1][0]).expand(
        kernel[0], kernel[1], *sizes
    )
    rows = moved[:, :, :, 0] + base_rows.reshape(points, *sizes)
    columns = moved[:, :, :, 1] + base_columns.reshape(points, *sizes)
    each = channels // parts
    spread = (images, parts, each, points * sizes[0] * sizes[1])
    places = [one.reshape(images, parts, 1, -1).expand(spread) for one in (rows, columns)]
    values = _interpolated(x.reshape(images, parts, each, *x.shape[2:]), *places)
    values = values.reshape(images, parts, each, points, *sizes)
    if mask is not None:
        values = values * mask.reshape(images, parts, 1, points, *sizes)
    inputs = values.reshape(images, groups, channels // groups * points, -1)
    weights = w.reshape(groups, count // groups, -1)
    return torch.einsum("ngkp,gok->ngop", inputs, weights).reshape(images, count, *sizes)


def _cumulated(t: Tensor) -> Tensor:
    """Return the integral of the hat function max(0, 1 - |s|) up to t."""
    near = t.clamp(-1, 1)
    return torch.where(near < 0, (near + 1) ** 2 / 2, 1 - (1 - near) ** 2 / 2)


def _hat_weights(begin: Tensor, step: Tensor, bins: int, size: int) -> Tensor:
    """Return the weight of each of `size` values in each of `bins` windows: [bins, size]."""
    edges = begin + step * torch.arange(bins + 1, dtype=step.dtype)
    sums = _cumulated(edges[:, None] - torch.arange(size, dtype=step.dtype))
    return sums[1:] - sums[:-1]


def _pooled_shape(x: Shape, rois: Shape, *_: Any, **settings: Any) -> list[Shape]:
    return [(rois[0], x[1], settings["pooled_height"], settings["pooled_width"])]


@op("prroi_pool", "X ROIs BatchRoINums?", lod="function", infer=_pooled_shape)
def prroi_pool_op(
    x: Tensor,
    rois: Tensor,
    lengths: Tensor | None,
    *,
    lods: Lods,
    spatial_scale: float = 1.0,
    pooled_height: int = 1,
    pooled_width: int = 1,
) -> tuple[Tensor, Any]:
    """Return the exact mean of the interpolated map over each part of a box, by integration."""
    made = [x.new_zeros((0, x.shape[1], pooled_height, pooled_width))]
    for number, roi in zip(boxes_in_pictures(x, rois, lods[1], lengths), rois, strict=True):
        left, top, right, bottom = roi * spatial_scale
        high = (bottom - top).clamp(min=0) / pooled_height
        wide = (right - left).clamp(min=0) / pooled_width
        rows = _hat_weights(top, high, pooled_height, x.shape[2])
        columns = _hat_weights(left, wide, pooled_width, x.shape[3])
        total = torch.einsum("ph,chw,qw->cpq", rows, x[number], columns)
        area = high * wide
        made.append(torch.where(area > 0, total / area.clamp(min=1e-30), 0.0)[None])
    return torch.cat(made), ()


def _deformed_shapes(x: Shape, rois: Shape, *_: Any, **settings: Any) -> list[Shape]:
    del x
    sizes = settings["pooled_height"], settings["pooled_width"]
    return [(rois[0], settings["output_dim"], *sizes)] * 2


@op(
    "deformable_psroi_pooling",
    "Input ROIs Trans",
    "Output TopCount",
    lod="function",
    infer=_deformed_shapes,
)
def deformable_psroi_pooling_op(
    x: Tensor,
    rois: Tensor,
    trans: Tensor,
    *,
    lods: Lods,
    no_trans: bool,
    spatial_scale: float,
    output_dim: int,
    group_size: Sequence[int],
    pooled_height: int,
    pooled_width: int,
    part_size: Sequence[int],
    sample_per_part: int,
    trans_std: float,
) -> tuple[list[Tensor], Any]:
    """Average the values at sample points in each part of a box; `trans` shifts the parts."""
    classes = 1 if no_trans else trans.shape[1] // 2
    each = max(output_dim // classes, 1)
    height, width = x.shape[2:]
    channel = torch.arange(output_dim)[:, None, None]
    row = torch.arange(pooled_height)[None, :, None]
    column = torch.arange(pooled_width)[None, None]
    group = [
        (row * group_size[0] // pooled_height).clamp(0, group_size[0] - 1),
        (column * group_size[1] // pooled_width).clamp(0, group_size[1] - 1),
    ]
    source = (channel * group_size[0] + group[0]) * group_size[1] + group[1]
    part = row * part_size[0] // pooled_height, column * part_size[1] // pooled_width
    samples = torch.arange(sample_per_part, dtype=x.dtype)
    made, counts = [], []
    for place, number in enumerate(boxes_in_pictures(x, rois, lods[1], None)):
        box = rois[place].tolist()
        left, top = (rounded(one) * spatial_scale - 0.5 for one in box[:2])
        right, bottom = ((rounded(one) + 1.0) * spatial_scale - 0.5 for one in box[2:])
        wide, high = max(right - left, 0.1), max(bottom - top, 0.1)
        begin_x = left + column * (wide / pooled_width)
        begin_y = top + row * (high / pooled_height)
        if not no_trans:
            moves = trans[place].reshape(classes, 2, *trans.shape[2:])
            begin_x = begin_x + moves[channel // each, 0, part[0], part[1]] * trans_std * wide
            begin_y = begin_y + moves[channel // each, 1, part[0], part[1]] * trans_std * high
        step_x, step_y = wide / pooled_width / sample_per_part, high / pooled_height
        step_y /= sample_per_part
        shape = (output_dim, pooled_height, pooled_width)
        square = (*shape, sample_per_part, sample_per_part)
        xs = (begin_x.expand(shape)[..., None, None] + samples * step_x).expand(square)
        ys = (begin_y.expand(shape)[..., None, None] + samples[:, None] * step_y).expand(square)
        inside = (xs >= -0.5) & (xs <= width - 0.5) & (ys >= -0.5) & (ys <= height - 0.5)
        maps = x[number][source].reshape(-1, height, width)
        values = _interpolated(
            maps,
            ys.clamp(0, height - 1).reshape(len(maps), -1),
            xs.clamp(0, width - 1).reshape(len(maps), -1),
        ).reshape(inside.shape)
        count = inside.sum((-1, -2))
        made.append((values * inside).sum((-1, -2)) / count.clamp(min=1))
        counts.append(count.to(x.dtype))
    return [torch.stack(made), torch.stack(counts)], ()


def _transformed_shapes(x: Shape, rois: Shape, **settings: Any) -> list[Shape]:
    sizes = settings["transformed_height"], settings["transformed_width"]
    return [(rois[0], x[1], *sizes), (rois[0], 1, *sizes), (rois[0], 9)]


@op(
    "roi_perspective_transform",
    "X ROIs",
    "Out Mask TransformMatrix",
    lod="function",
    infer=_transformed_shapes,
)
def roi_perspective_transform_op(
    x: Tensor,
    rois: Tensor,
    *,
    lods: Lods,
    transformed_height: int,
    transformed_width: int,
    spatial_scale: float = 1.0,
) -> tuple[list[Tensor], Any]:
    """Unwarp quadrangles into rectangles. Corners are in clockwise order from the top left."""
    height, width = x.shape[2:]
    rows, columns = torch.meshgrid(
        torch.arange(transformed_height, dtype=x.dtype),
        torch.arange(transformed_width, dtype=x.dtype),
        indexing="ij",
    )
    grid = torch.stack([columns, rows, torch.ones_like(rows)]).reshape(3, -1)
    made, masks, matrices = [], [], []
    for number, roi in zip(boxes_in_pictures(x, rois, lods[1], None), rois, strict=True):
        corners = (roi.detach() * spatial_scale).reshape(4, 2)
        matrix = _perspective(corners, transformed_height, transformed_width)
        u, v, scale = matrix @ grid
        xs, ys = u / scale, v / scale
        inside = _in_quadrangle(xs, ys, corners)
        inside &= (xs > -0.5) & (xs < width - 0.5) & (ys > -0.5) & (ys < height - 0.5)
        places = [
            one.clamp(0, limit - 1).expand(x.shape[1], -1)
            for one, limit in ((ys, height), (xs, width))
        ]
        values = _interpolated(x[number], *places) * inside
        made.append(values.reshape(-1, transformed_height, transformed_width))
        masks.append(inside.reshape(1, transformed_height, transformed_width).to(torch.int32))
        matrices.append(matrix.reshape(-1))
    return [torch.stack(made), torch.stack(masks), torch.stack(matrices)], [lods[1], (), ()]


def _perspective(corners: Tensor, height: int, width: int) -> Tensor:
    """Return the matrix that maps positions in the rectangle to positions in the quadrangle: [3,
    3].
    """
    sides = (corners - corners.roll(-1, 0)).norm(dim=1)
    wide, high = float(sides[0] + sides[2]) / 2, float(sides[1] + sides[3]) / 2
    last_row = max(2, height) - 1
    last_column = max(2, min(rounded(wide * last_row / high) + 1, width)) - 1
    (x0, y0), (x1, y1), (x2, y2), (x3, y3) = corners.tolist()
    dx1, dx2, dx3 = x1 - x2, x3 - x2, x0 - x1 + x2 - x3
    dy1, dy2, dy3 = y1 - y2, y3 - y2, y0 - y1 + y2 - y3
    below = dx1 * dy2 - dx2 * dy1 + 1e-5
    g = (dx3 * dy2 - dx2 * dy3) / below / last_column
    h = (dx1 * dy3 - dx3 * dy1) / below / last_row
    return corners.new_tensor(
        [
            [(x1 - x0) / last_column + g * x1, (x3 - x0) / last_row + h * x3, x0],
            [(y1 - y0) / last_column + g * y1, (y3 - y0) / last_row + h * y3, y0],
            [g, h, 1.0],
        ]
    )


def _in_quadrangle(xs: Tensor, ys: Tensor, corners: Tensor) -> Tensor:
    """Return which positions are inside or on the border of a quadrangle, by counting side
    crossings.
    """
    near = 1e-4
    on_border = torch.zeros_like(xs, dtype=torch.bool)
    crossed = torch.zeros_like(xs, dtype=torch.int64)
    for place in range(4):
        (xa, ya), (xb, yb) = corners[place].tolist(), corners[(place + 1) % 4].tolist()
        low, high = min(ya, yb), max(ya, yb)
        if math.fabs(ya - yb) < near:
            level = (ys - ya).abs() < near
            on_border |= level & (xs >= min(xa, xb) - near) & (xs <= max(xa, xb) + near)
            continue
        at = (ys - ya) * (xb - xa) / (yb - ya) + xa
        on_border |= ((at - xs).abs() < near) & (ys >= low - near) & (ys <= high + near)
        crossed += (ys > low + near) & (ys <= high + near) & (at > xs)
    return on_border | (crossed % 2 == 1)


# -- layers -----------------------------------------------------------------------------------


def _pair(value: int | Sequence[int]) -> list[int]:
    return [value, value] if isinstance(value, int) else list(value)


@layer
def deformable_conv(
    input: Variable,
    offset: Variable,
    mask: Variable | None,
    num_filters: int,
    filter_size: int | Sequence[int],
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int | None = None,
    deformable_groups: int | None = None,
    im2col_step: int | None = None,
    param_attr: Any = None,
    bias_attr: Any = None,
    modulated: bool = True,
    name: str | None = None,
) -> Variable:
    """Convolve at positions moved by `offset`; with `modulated`, `mask` weights the values."""
    del im2col_step
    helper = LayerHelper("deformable_conv", name, bias_attr=bias_attr)
    channels = helper.check_input(input).shape[1]
    if param_attr is False:
        raise AssertionError("param_attr cannot be False, because the layer needs a filter")
    if channels % (groups or 1):
        raise ValueError(f"the input's {channels} channels cannot be split into {groups} groups")
    kernel = _pair(filter_size)
    first = Normal(0.0, (2.0 / (kernel[0] * kernel[1] * channels)) ** 0.5, 0)
    shape = [num_filters, channels // (groups or 1), *kernel]
    attr = to_param_attr(param_attr)
    w = helper.create_parameter(attr, shape, input.dtype, default_initializer=first)
    attrs = {
        "strides": _pair(stride),
        "paddings": _pair(padding),
        "dilations": _pair(dilation),
        "groups": groups,
        "deformable_groups": deformable_groups,
    }
    inputs = {"Input": input, "Offset": helper.check_input(offset, "offset"), "Filter": w}
    if modulated:
        inputs["Mask"] = helper.check_input(mask, "mask")
    type = "deformable_conv" if modulated else "deformable_conv_v1"
    out = helper.add(type, inputs, attrs, slot="Output", dtype=input.dtype)
    return helper.append_bias_op(out, dim_start=1, dim_end=2)


@layer
def prroi_pool(
    input: Variable,
    rois: Variable,
    spatial_scale: float = 1.0,
    pooled_height: int = 1,
    pooled_width: int = 1,
    batch_roi_nums: Variable | None = None,
    name: str | None = None,
) -> Variable:
    """Pool each box as the exact mean of the interpolated map. Boxes also get gradients."""
    helper = LayerHelper("prroi_pool", name)
    for what, value, kind in (
        ("spatial_scale", spatial_scale, float),
        ("pooled_height", pooled_height, int),
        ("pooled_width", pooled_width, int),
    ):
        if not isinstance(value, kind):
            raise TypeError(f"{what} must be of type {kind.__name__}, got {value!r}")
    inputs = {"X": helper.check_input(input), "ROIs": helper.check_input(rois, "rois")}
    if batch_roi_nums is not None:
        inputs["BatchRoINums"] = batch_roi_nums
    attrs = op_settings("prroi_pool", locals())
    return helper.add("prroi_pool", inputs, attrs, dtype=input.dtype)


@layer
def deformable_roi_pooling(
    input: Variable,
    rois: Variable,
    trans: Variable,
    no_trans: bool = False,
    spatial_scale: float = 1.0,
    group_size: Sequence[int] = (1, 1),
    pooled_height: int = 1,
    pooled_width: int = 1,
    part_size: Sequence[int] | None = None,
    sample_per_part: int = 1,
    trans_std: float = 0.1,
    position_sensitive: bool = False,
    name: str | None = None,
) -> Variable:
    """Pool boxes whose parts are moved by `trans`.

    With position_sensitive, each part has its own channels.
    """
    helper = LayerHelper("deformable_psroi_pooling", name)
    parts = pooled_height * pooled_width if position_sensitive else 1
    attrs = op_settings(
        "deformable_psroi_pooling",
        locals(),
        output_dim=input.shape[1] // parts,
        group_size=_pair(group_size),
        part_size=_pair(part_size or (pooled_height, pooled_width)),
    )
    inputs = {"Input": input, "ROIs": rois, "Trans": trans}
    return helper.add_all("deformable_psroi_pooling", inputs, attrs, [input.dtype] * 2)[0]


@layer
def roi_perspective_transform(
    input: Variable,
    rois: Variable,
    transformed_height: int,
    transformed_width: int,
    spatial_scale: float = 1.0,
    name: str | None = None,
) -> tuple[Variable, ...]:
    """Unwarp quadrangles; return the rectangles, masks of their interior, and the matrices."""
    helper = LayerHelper("roi_perspective_transform", name)
    inputs = {"X": helper.check_input(input), "ROIs": helper.check_input(rois, "rois")}
    attrs = op_settings("roi_perspective_transform", locals())
    kinds = [input.dtype, "int32", input.dtype]
    made = helper.add_all("roi_perspective_transform", inputs, attrs, kinds)
    made[1].stop_gradient = made[2].stop_gradient = True
    return tuple(made)
