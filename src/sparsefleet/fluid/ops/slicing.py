"""Parts of a tensor, from somewhere to somewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from sparsefleet.fluid.lowering.registry import LodRule, Shape, op
from sparsefleet.fluid.ops.sizes import open_sizes, run_sizes

Tensor = torch.Tensor
Numbers = Sequence[int]

_SLICE_INPUTS = "Input StartsTensor? StartsTensorList* EndsTensor? EndsTensorList*"


def _slice_shape(
    shape: Shape,
    starts: Shape | None,
    start_parts: Any,
    ends: Shape | None,
    end_parts: Any,
    strides: Shape | None = None,
    stride_parts: Any = (),
    /,
    **settings: Any,
) -> list[Shape]:
    sizes = list(shape)
    is_open = not (starts is ends is strides is None) or start_parts or end_parts or stride_parts
    steps = [1] * len(settings["axes"]) if is_open else settings.get("strides")
    steps = steps or [1] * len(settings["axes"])
    for axis, start, end, step in zip(
        settings["axes"], *_bounds(settings, bool(is_open)), steps, strict=True
    ):
        if is_open or sizes[axis] < 0:  # it may be smaller than the slice
            sizes[axis] = -1
        else:
            sizes[axis] = len(range(*slice(start, end, step).indices(sizes[axis])))
    dropped = settings.get("decrease_axis", ())
    return [tuple(size for axis, size in enumerate(sizes) if axis not in dropped) or (1,)]


def _slice_lod(attrs: Mapping[str, Any]) -> LodRule:
    return "none" if 0 in attrs["axes"] else "share"


def _bounds(settings: dict[str, Any], is_open: bool) -> tuple[Numbers, Numbers]:
    if is_open:
        return [0] * len(settings["axes"]), [0] * len(settings["axes"])
    return settings["starts"], settings["ends"]


def _sliced(
    x: Tensor, axes: Numbers, starts: Numbers, ends: Numbers, dropped: Numbers = ()
) -> Tensor:
    for axis, start, end in zip(axes, starts, ends, strict=True):
        if axis in dropped and not -x.shape[axis] <= start < x.shape[axis]:
            raise ValueError(f"place {start} of axis {axis}, which has {x.shape[axis]}")
        x = x[(slice(None),) * (axis % x.dim()) + (slice(start, end),)]
    return _without(x, dropped)


def _without(x: Tensor, axes: Numbers) -> Tensor:
    if not axes:
        return x
    kept = [size for axis, size in enumerate(x.shape) if axis not in axes]
    return x.reshape(kept or [1])


@op("slice", _SLICE_INPUTS, lod=_slice_lod, infer=_slice_shape)
def slice_axes(
    x: Tensor,
    starts_tensor: Tensor | None,
    start_parts: list[Tensor],
    ends_tensor: Tensor | None,
    end_parts: list[Tensor],
    *,
    axes: Numbers,
    starts: Numbers = (),
    ends: Numbers = (),
    starts_places: Numbers = (),
    ends_places: Numbers = (),
    decrease_axis: Numbers = (),
) -> Tensor:
    """decrease_axis: axes of one place that go away."""
    first = run_sizes(starts, starts_tensor, start_parts, starts_places)
    last = run_sizes(ends, ends_tensor, end_parts, ends_places)
    return _sliced(x, axes, first, last, decrease_axis)


@op(
    "strided_slice",
    _SLICE_INPUTS + " StridesTensor? StridesTensorList*",
    lod=_slice_lod,
    infer=_slice_shape,
)
def strided_slice(
    x: Tensor,
    starts_tensor: Tensor | None,
    start_parts: list[Tensor],
    ends_tensor: Tensor | None,
    end_parts: list[Tensor],
    strides_tensor: Tensor | None,
    stride_parts: list[Tensor],
    *,
    axes: Numbers,
    starts: Numbers = (),
    ends: Numbers = (),
    strides: Numbers = (),
    starts_places: Numbers = (),
    ends_places: Numbers = (),
    strides_places: Numbers = (),
    decrease_axis: Numbers = (),
) -> Tensor:
    first = run_sizes(starts, starts_tensor, start_parts, starts_places)
    last = run_sizes(ends, ends_tensor, end_parts, ends_places)
    steps = run_sizes(strides, strides_tensor, stride_parts, strides_places)
    for axis, start, end, step in zip(axes, first, last, steps, strict=True):
        rows = range(*slice(start, end, step).indices(x.shape[axis]))
        x = x.index_select(axis, torch.tensor(rows, dtype=torch.int64, device=x.device))
    return _without(x, decrease_axis)


def _crop_shape(
    shape: Shape,
    whole: Shape | None,
    parts: Any,
    offsets: Shape | None,
    offset_parts: Any,
    /,
    **settings: Any,
) -> list[Shape]:
    del shape, parts, offsets, offset_parts
    return [tuple(open_sizes(settings["shape"], whole, settings.get("shape_places", ())))]


@op(
    "crop_tensor",
    "X ShapeTensor? ShapeTensorList* OffsetsTensor? OffsetsTensorList*",
    infer=_crop_shape,
)
def crop_tensor(
    x: Tensor,
    shape_tensor: Tensor | None,
    shape_parts: list[Tensor],
    offsets_tensor: Tensor | None,
    offset_parts: list[Tensor],
    *,
    shape: Numbers = (),
    offsets: Numbers = (),
    shape_places: Numbers = (),
    offsets_places: Numbers = (),
) -> Tensor:
    """From the offsets on, of this shape; -1 in it is all that is left."""
    sizes = run_sizes(shape, shape_tensor, shape_parts, shape_places)
    begin = run_sizes(offsets, offsets_tensor, offset_parts, offsets_places) or [0] * x.dim()
    ends = [
        x.shape[axis] if size < 0 else start + size
        for axis, (start, size) in enumerate(zip(begin, sizes, strict=True))
    ]
    if any(end > size for end, size in zip(ends, x.shape, strict=True)):
        raise ValueError(f"{sizes} from {begin} on is more than {list(x.shape)}")
    return _sliced(x, range(x.dim()), begin, ends)


@op("crop_like", "X Y", lod="none")
def crop_like(x: Tensor, y: Tensor, *, offsets: Numbers) -> Tensor:
    """The part of x that has the shape of y."""
    ends = [start + size for start, size in zip(offsets, y.shape, strict=True)]
    return _sliced(x, range(x.dim()), offsets, ends)
