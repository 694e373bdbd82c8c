"""Slicing, gathering, one-hot encoding and sorting."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional

from sparsefleet.fluid.framework import Variable, unique_name
from sparsefleet.fluid.lowering.registry import LodRule, Shape, ShapeRule, float_rule, op
from sparsefleet.fluid.operators.filling import fill_constant
from sparsefleet.fluid.operators.layer_helper import LayerHelper, layer
from sparsefleet.fluid.operators.sizes import Sizes, open_sizes, run_sizes, sizes_of

__all__ = [
    "argsort",
    "crop",
    "crop_tensor",
    "gather",
    "gather_nd",
    "one_hot",
    "scatter",
    "slice",
    "strided_slice",
    "topk",
]

Tensor = torch.Tensor


def _top_shapes(x: Shape, k: Shape | None, /, **settings: Any) -> list[Shape] | None:
    del settings
    return None if k is None else [(*x[:-1], -1)] * 2


def _top_shapes_of_floats(x: Shape, k: Shape | None, /, **attrs: Any) -> list[Shape] | None:
    count = attrs.get("k", 0)
    if k is not None or not x or not 0 < count <= (x[-1] if x[-1] >= 0 else count):
        return None
    return [(*x[:-1], count)] * 2


@op(
    "top_k",
    "X K?",
    "Out Indices",
    shape=float_rule(_top_shapes_of_floats, "", "int64"),
    infer=_top_shapes,
)
def top_k(x: Tensor, k_tensor: Tensor | None, *, k: int = 0) -> list[Tensor]:
    values, indices = torch.topk(x, k if k_tensor is None else int(k_tensor), dim=-1)
    return [values, indices]


class _LastGradient(torch.autograd.Function):
    """Selects rows. If a row is selected several times, it gets only the last gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Tensor) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.count = x.shape[0]
        return x.index_select(0, rows)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (rows,) = ctx.saved_tensors
        places = torch.arange(len(rows), device=rows.device)
        last = places.new_full((ctx.count,), -1).scatter_reduce(0, rows, places, "amax")
        kept = last[rows] == places
        made = gradient.new_zeros(ctx.count, *gradient.shape[1:])
        return made.index_add(0, rows[kept], gradient[kept]), None


@op("gather", "X Index", lod="none")
def gather_op(x: Tensor, index: Tensor, *, overwrite: bool = True) -> Tensor:
    """Select rows. overwrite: if a row is selected several times, use only its last gradient."""
    rows = index.reshape(-1).long()
    if not overwrite or x.is_meta or not (x.requires_grad and torch.is_grad_enabled()):
        return x.index_select(0, rows)
    made: Tensor = _LastGradient.apply(x, rows)  # type: ignore[no-untyped-call]
    return made


def _gathered(x: Shape, index: Shape, **attrs: Any) -> list[Shape] | None:
    del attrs
    if not index or index[-1] < 0:
        return None
    if index[-1] > len(x):
        raise ValueError(
            f"index has {index[-1]} coordinates per position, but x has only {len(x)} axes"
        )
    return [(*index[:-1], *x[index[-1] :]) or (1,)]


@op("gather_nd", "X Index", lod="none", shape=ShapeRule(_gathered))
def gather_nd_op(x: Tensor, index: Tensor) -> Tensor:
    """Select elements or slices by index int[..., K], which holds their first K coordinates."""
    count = index.shape[-1]
    if count == 0:  # all of x at each position
        return x.expand(*index.shape[:-1], *x.shape).clone()
    found = x[index.long().unbind(-1)]
    return found if found.dim() else found.reshape(1)


@op("scatter", "X Ids Updates")
def scatter_op(x: Tensor, ids: Tensor, updates: Tensor, *, overwrite: bool = True) -> Tensor:
    rows = ids.reshape(-1).long()
    if overwrite:
        return x.index_copy(0, rows, updates)
    cleared = x.index_fill(0, rows, 0.0)
    return cleared.index_add(0, rows, updates)


def _one_hot_shape(shape: Shape, depth: Shape | None, /, **settings: Any) -> list[Shape]:
    del depth
    return [(*shape[:-1], settings.get("depth", -1))]


def _one_hot_v2_shape(shape: Shape, depth: Shape | None, /, **settings: Any) -> list[Shape]:
    del depth
    return [(*shape, settings.get("depth", -1))]


def _hot(ids: Tensor, depth: int, lenient: bool) -> Tensor:
    outside = (ids < 0) | (ids >= depth)
    if not lenient and bool(outside.any()):
        raise ValueError(f"ids must be in 0..{depth - 1}, got {ids.min()}..{ids.max()}")
    return functional.one_hot(ids.clamp(0, depth - 1), depth) * ~outside[..., None]


@op("one_hot", "X DepthTensor?", infer=_one_hot_shape)
def one_hot_op(
    x: Tensor, depth_tensor: Tensor | None, *, depth: int = 0, allow_out_of_range: bool = False
) -> Tensor:
    """Encode ids [..., 1] as float32[..., depth]."""
    size = depth if depth_tensor is None else int(depth_tensor)
    if x.shape[-1] != 1 and not x.is_meta:
        raise ValueError(
            f"ids must have shape [..., 1], got {[*x.shape]}; use fluid.one_hot for [...]"
        )
    return _hot(x.long()[..., 0], size, allow_out_of_range).float()


@op("one_hot_v2", "X DepthTensor?", infer=_one_hot_v2_shape)
def one_hot_v2(
    x: Tensor, depth_tensor: Tensor | None, *, depth: int = 0, allow_out_of_range: bool = False
) -> Tensor:
    """Encode ids [...] as float32[..., depth]."""
    size = depth if depth_tensor is None else int(depth_tensor)
    return _hot(x.long(), size, allow_out_of_range).float()


@op("argsort", "X", "Out Indices")
def argsort_op(x: Tensor, *, axis: int = -1, descending: bool = False) -> list[Tensor]:
    values, indices = torch.sort(x, dim=axis, descending=descending, stable=True)
    return [values, indices]


@layer
def topk(input: Variable, k: int | Variable, name: str | None = None) -> tuple[Variable, Variable]:
    """Return the k largest elements of each row and their indices: int64."""
    helper = LayerHelper("top_k", name)
    values = helper.new_variable(helper.check_input(input).dtype, stop_gradient=True)
    indices = helper.new_variable("int64", stop_gradient=True)
    inputs, attrs = {"X": input}, {"k": k}
    if isinstance(k, Variable):
        inputs, attrs = {"X": input, "K": k}, {}
    helper.append_op("top_k", inputs, {"Out": values, "Indices": indices}, attrs)
    return values, indices


@layer
def argsort(
    input: Variable, axis: int = -1, descending: bool = False, name: str | None = None
) -> tuple[Variable, Variable]:
    """Sort along an axis; also return the original indices: int64."""
    helper = LayerHelper("argsort", name)
    values = helper.new_variable(helper.check_input(input).dtype, stop_gradient=True)
    indices = helper.new_variable("int64", stop_gradient=True)
    attrs = {"axis": axis, "descending": descending}
    helper.append_op("argsort", {"X": input}, {"Out": values, "Indices": indices}, attrs)
    return values, indices


@layer
def gather(input: Variable, index: Variable, overwrite: bool = True) -> Variable:
    """Select rows by index."""
    helper = LayerHelper("gather")
    inputs = {"X": helper.check_input(input), "Index": index}
    return helper.add("gather", inputs, {"overwrite": overwrite})


@layer
def gather_nd(input: Variable, index: Variable, name: str | None = None) -> Variable:
    """Select elements or slices by their first K indices: index int[..., K]."""
    helper = LayerHelper("gather_nd", name)
    return helper.add("gather_nd", {"X": helper.check_input(input), "Index": index})


@layer
def scatter(
    input: Variable,
    index: Variable,
    updates: Variable,
    name: str | None = None,
    overwrite: bool = True,
) -> Variable:
    """Replace the rows at `index` with `updates` or, without `overwrite`, add the updates to
    them.
    """
    helper = LayerHelper("scatter", name)
    inputs = {"X": helper.check_input(input), "Ids": index, "Updates": updates}
    return helper.add("scatter", inputs, {"overwrite": overwrite})


@layer
def one_hot(input: Variable, depth: int | Variable, allow_out_of_range: bool = False) -> Variable:
    """Encode ids int64[..., 1] as float32[..., depth]; allow_out_of_range makes other ids all 0."""
    return one_hot_rows("one_hot", input, depth, allow_out_of_range)


def one_hot_rows(
    type: str, ids: Variable, depth: int | Variable, allow_out_of_range: bool
) -> Variable:
    """One-hot encode with the operator `one_hot` or `one_hot_v2`."""
    helper = LayerHelper(type)
    inputs = {"X": helper.check_input(ids)}
    attrs: dict[str, int] = {"allow_out_of_range": allow_out_of_range}
    if isinstance(depth, Variable):
        inputs["DepthTensor"] = depth
    else:
        attrs["depth"] = depth
    return helper.add(type, inputs, attrs, stop_gradient=True)


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
    del start_parts, end_parts, stride_parts
    sizes, axes = list(shape), settings["axes"]
    is_open = not (starts is ends is strides is None)
    given = [settings.get(name) or [1] * len(axes) for name in ("starts", "ends", "strides")]
    variable = {
        place
        for name in ("starts", "ends", "strides")
        for place in settings.get(f"{name}_places", ())
    }
    for place, axis in enumerate(axes):
        # Of unknown size, because a slice stops at the end of the input.
        if is_open or place in variable or sizes[axis] < 0:
            sizes[axis] = -1
        else:
            start, end, step = (numbers[place] for numbers in given)
            sizes[axis] = len(_picked(start, end, step, sizes[axis]))
    dropped = settings.get("decrease_axis", ())
    return [tuple(size for axis, size in enumerate(sizes) if axis not in dropped) or (1,)]


def _picked(start: int, end: int, step: int, size: int) -> range:
    """Return the indices of a slice; with a negative step, end -1 includes the first element."""
    stop = None if end == -1 and step < 0 else end
    return range(*builtins.slice(start, stop, step).indices(size))


def _slice_lod(attrs: Mapping[str, Any]) -> LodRule:
    return "none" if 0 in attrs["axes"] else "share"


def _sliced_op(
    x: Tensor, axes: Numbers, starts: Numbers, ends: Numbers, dropped: Numbers = ()
) -> Tensor:
    for axis, start, end in zip(axes, starts, ends, strict=True):
        if axis in dropped and not -x.shape[axis] <= start < x.shape[axis]:
            raise ValueError(
                f"index {start} is out of range for axis {axis} of size {x.shape[axis]}"
            )
        end = _end_of_index(axis, start, end, dropped)
        x = x[(builtins.slice(None),) * (axis % x.dim()) + (builtins.slice(start, end),)]
    return _without(x, dropped)


def _end_of_index(axis: int, start: int, end: int, dropped: Numbers) -> int:
    """Return the end of a slice, or no end if an index, known only at run time, is -1.

    Such an index has the end 0, which would make the slice empty.
    """
    return _END if axis in dropped and start == -1 and end == 0 else end


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
    """Slice along axes. decrease_axis: axes of size 1 to drop."""
    first = run_sizes(starts, starts_tensor, start_parts, starts_places)
    last = run_sizes(ends, ends_tensor, end_parts, ends_places)
    return _sliced_op(x, axes, first, last, decrease_axis)


@op(
    "strided_slice",
    _SLICE_INPUTS + " StridesTensor? StridesTensorList*",
    lod=_slice_lod,
    infer=_slice_shape,
)
def strided_slice_op(
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
        end = _end_of_index(axis, start, end, decrease_axis)
        rows = _picked(start, end, step, x.shape[axis])
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
def crop_tensor_op(
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
    """Crop to this shape, starting at the offsets; -1 means the rest of the axis."""
    sizes = run_sizes(shape, shape_tensor, shape_parts, shape_places)
    begin = run_sizes(offsets, offsets_tensor, offset_parts, offsets_places) or [0] * x.dim()
    ends = [
        x.shape[axis] if size < 0 else start + size
        for axis, (start, size) in enumerate(zip(begin, sizes, strict=True))
    ]
    if any(end > size for end, size in zip(ends, x.shape, strict=True)):
        raise ValueError(f"a crop of {sizes} starting at {begin} exceeds the shape {list(x.shape)}")
    return _sliced_op(x, range(x.dim()), begin, ends)


@op("crop_like", "X Y", lod="none")
def crop_like(x: Tensor, y: Tensor, *, offsets: Numbers) -> Tensor:
    """Crop x to the shape of y."""
    ends = [start + size for start, size in zip(offsets, y.shape, strict=True)]
    return _sliced_op(x, range(x.dim()), offsets, ends)


_END = 10_000_000  # Fluid's constant for the end of an axis


@layer
def slice(input: Variable, axes: Sequence[int], starts: Sizes, ends: Sizes) -> Variable:
    """Slice from `starts` to `ends` along the given axes."""
    helper = LayerHelper("slice")
    return _sliced(helper, "slice", input, axes, Starts=starts, Ends=ends)


@layer
def strided_slice(
    input: Variable, axes: Sequence[int], starts: Sizes, ends: Sizes, strides: Sizes
) -> Variable:
    """Slice from `starts` to `ends` with strides along the given axes.

    Negative strides go backwards.
    """
    helper = LayerHelper("strided_slice")
    return _sliced(helper, "strided_slice", input, axes, Starts=starts, Ends=ends, Strides=strides)


def _sliced(
    helper: LayerHelper, type: str, x: Variable, axes: Sequence[int], **bounds: Sizes
) -> Variable:
    rank = len(helper.check_input(x).shape)
    for slot, value in bounds.items():
        if not isinstance(value, Variable) and len(value) != len(axes):
            raise helper.refuse(
                f"got {len(axes)} axes and {len(value)} {slot.lower()}, expected one per axis"
            )
    if any(not -rank <= axis < rank for axis in axes):
        raise helper.refuse(f"axes must be in -{rank}..{rank - 1} for {x}, got {list(axes)}")
    inputs: dict[str, Any] = {"Input": x}
    attrs: dict[str, Any] = {"axes": [axis % rank for axis in axes]}
    for slot, value in bounds.items():
        found, settings = sizes_of(helper, slot.lower(), value, slot)
        inputs |= found
        attrs |= settings
    return helper.add(type, inputs, attrs, dtype=x.dtype)


def take_item(x: Variable, item: Any) -> Variable:
    """Return `x[item]`: slices keep their axis, indices drop it."""
    helper = LayerHelper("slice", f"{x.name}_slice")
    items = item if isinstance(item, tuple) else (item,)
    if len(items) > len(x.shape):
        raise helper.refuse(f"too many indices ({len(items)}) for {x}")
    axes: list[int] = []
    dropped: list[int] = []
    starts: list[Any] = []
    ends: list[Any] = []
    steps: list[Any] = []
    for axis, wanted in enumerate(items):
        if isinstance(wanted, builtins.slice):
            start, end, step = wanted.start, wanted.stop, wanted.step or 1
            if start is None and end is None and step == 1:
                continue
            backwards = isinstance(step, int) and step < 0
            start = (_END if backwards else 0) if start is None else start
            end = (-_END if backwards else _END) if end is None else end
        elif isinstance(wanted, (int, Variable)):
            start, step, end = wanted, 1, _after(wanted)
            dropped.append(axis)
        else:
            raise helper.refuse(f"an index must be a number, a slice or a Variable, got {wanted!r}")
        for values, value in ((axes, axis), (starts, start), (ends, end), (steps, step)):
            values.append(value)
    if not axes:
        return x
    return _place_slice(helper, x, axes, starts, ends, steps, dropped)


def _after(place: Any) -> Any:
    if isinstance(place, Variable):
        return place + fill_constant([1], place.dtype, 1)
    return _END if place == -1 else place + 1


def _place_slice(
    helper: LayerHelper,
    x: Variable,
    axes: list[int],
    starts: list[Any],
    ends: list[Any],
    steps: list[Any],
    dropped: list[int],
) -> Variable:
    bounds = {"Starts": starts, "Ends": ends}
    type = "slice"
    if any(isinstance(step, Variable) or step != 1 for step in steps):
        type, bounds = "strided_slice", {**bounds, "Strides": steps}
    inputs: dict[str, Any] = {"Input": x}
    attrs: dict[str, Any] = {"axes": axes, "decrease_axis": dropped}
    for slot, value in bounds.items():
        found, settings = sizes_of(helper, slot.lower(), value, slot)
        inputs |= found
        attrs |= settings
    assert x.block is not None
    block = x.block.program.current_block()
    out = block.create_var(unique_name.generate(f"{x.name}_{type}"), dtype=x.dtype)
    block.append_op(type, inputs, {"Out": out}, attrs)
    return out


@layer
def crop_tensor(
    x: Variable,
    shape: Sizes | None = None,
    offsets: Sizes | None = None,
    name: str | None = None,
) -> Variable:
    """Crop to this shape, starting at the offsets; -1 means the rest of the axis."""
    helper = LayerHelper("crop_tensor", name)
    rank = len(helper.check_input(x, "x").shape)
    inputs: dict[str, Any] = {"X": x}
    attrs: dict[str, Any] = {}
    for slot, value in (("Shape", shape), ("Offsets", [0] * rank if offsets is None else offsets)):
        if value is None:
            raise helper.refuse("shape must be given")
        if not isinstance(value, Variable) and len(value) != rank:
            raise helper.refuse(f"{slot.lower()} must have {rank} numbers, got {value!r}")
        found, settings = sizes_of(helper, slot.lower(), value, slot)
        inputs |= found
        attrs |= settings
    return helper.add("crop_tensor", inputs, attrs, dtype=x.dtype)


@layer
def crop(
    x: Variable,
    shape: Variable | Sequence[int] | None = None,
    offsets: Variable | Sequence[int] | None = None,
    name: str | None = None,
) -> Variable:
    """Crop to this shape, or to a variable's shape, starting at the offsets."""
    helper = LayerHelper("crop", name)
    begin = [0] * len(helper.check_input(x, "x").shape) if offsets is None else offsets
    if isinstance(shape, Variable) and not isinstance(begin, Variable):
        return helper.add("crop_like", {"X": x, "Y": shape}, {"offsets": list(begin)})
    return crop_tensor(x, shape, begin, name=helper.name)
