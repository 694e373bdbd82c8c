"""Layers that reshape, join, split and copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from sparsefleet.collective.module_preparation import half_dtype
from sparsefleet.collective.strategy import AmpConfig
from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.framework.dtypes import dtype_name
from sparsefleet.fluid.framework.variable import ARRAY
from sparsefleet.fluid.lowering.lowered import Lod
from sparsefleet.fluid.lowering.registry import (
    LodRule,
    Shape,
    ShapeRule,
    common_shape,
    float_rule,
    op,
    product_of,
)
from sparsefleet.fluid.operators.layer_helper import LayerHelper, layer
from sparsefleet.fluid.operators.sizes import Sizes, open_sizes, run_sizes, sizes_of

__all__ = [
    "assign",
    "cast",
    "concat",
    "expand",
    "expand_as",
    "flatten",
    "pad",
    "reshape",
    "reverse",
    "shape",
    "split",
    "squeeze",
    "stack",
    "transpose",
    "unsqueeze",
    "unstack",
]

Tensor = torch.Tensor

_AMP = AmpConfig()


@op("cast", "X")
def cast_op(x: Tensor, *, out_dtype: str, by_place: bool = False) -> Tensor:
    """Convert to a dtype. by_place: replace float16 with the half-precision type of the device
    (bfloat16 on a CPU).
    """
    is_chosen = by_place and out_dtype == "float16"
    return x.to(half_dtype(_AMP, x.device) if is_chosen else getattr(torch, out_dtype))


def _reshaped(
    x: Shape, whole: Shape | None, parts: list[Shape], **settings: Any
) -> list[Shape] | None:
    if whole is None and not parts:
        return None
    given = settings["shape"]
    # If both are given, Fluid declares the sizes in the list; the variable may differ in a run.
    sizes = open_sizes(given, None if given else whole, settings.get("shape_places", ()))
    return [tuple(x[place] if size == 0 else size for place, size in enumerate(sizes))]


def _reshape_shape(
    x: Shape, whole: Shape | None, parts: list[Shape], **attrs: Any
) -> list[Shape] | None:
    if whole is not None or parts:
        return None
    given = list(attrs["shape"])
    if given.count(-1) > 1 or any(size < -1 for size in given):
        raise ValueError(f"shape {given} must have sizes >= 0 and at most one -1")
    if any(size == 0 and place >= len(x) for place, size in enumerate(given)):
        raise ValueError(f"shape {given} refers to a dimension that {list(x)} does not have")
    copied = {place for place, size in enumerate(given) if size == 0}
    sizes = [x[place] if place in copied else size for place, size in enumerate(given)]
    # Copied sizes cancel out, so they need not be known.
    before = product_of([size for place, size in enumerate(x) if place not in copied])
    rest = [size for place, size in enumerate(sizes) if place not in copied]
    after = product_of([size for size in rest if size != -1])
    if -1 in given:
        place = given.index(-1)
        if before >= 0 and after > 0:
            if before % after:
                raise ValueError(
                    f"{list(x)} has {before} elements, which is not a multiple of {after}"
                )
            sizes[place] = before // after
        elif before == 0:
            sizes[place] = 0
    elif before >= 0 and before != after:
        raise ValueError(f"shape {list(x)} cannot be changed to {given}")
    return [tuple(sizes)]


@op(
    "reshape2",
    "X ShapeTensor? ShapeTensorList*",
    lod="rows",
    shape=ShapeRule(_reshape_shape),
    infer=_reshaped,
)
def reshape_op(
    x: Tensor,
    shape_tensor: Tensor | None,
    parts: list[Tensor],
    *,
    shape: Sequence[int] = (),
    shape_places: Sequence[int] = (),
) -> Tensor:
    """Change the shape; 0 keeps the size of that axis, and -1 is inferred from the rest."""
    sizes = run_sizes(shape, shape_tensor, parts, shape_places)
    return x.reshape([x.shape[place] if size == 0 else size for place, size in enumerate(sizes)])


def _transposed(x: Shape, /, **attrs: Any) -> list[Shape] | None:
    axes = attrs["axis"]
    return [tuple(x[axis] for axis in axes)] if sorted(axes) == list(range(len(x))) else None


@op("transpose2", "X", lod="none", shape=float_rule(_transposed))
def transpose_op(x: Tensor, *, axis: Sequence[int]) -> Tensor:
    if len(axis) != x.dim():
        raise ValueError(f"perm has {len(axis)} axes, expected {x.dim()}")
    return x.permute(*axis)


def _squeezed(x: Shape, **attrs: Any) -> list[Shape] | None:
    axes = list(attrs.get("axes", ()))
    if not axes:
        return None
    if any(not -len(x) <= axis < len(x) for axis in axes):
        raise ValueError(f"axes {axes} are out of range for an input with {len(x)} axes")
    dropped = {axis % len(x) for axis in axes if x[axis] in (1, -1)}
    return [tuple(size for place, size in enumerate(x) if place not in dropped)]


@op("squeeze2", "X", shape=ShapeRule(_squeezed))
def squeeze_op(x: Tensor, *, axes: Sequence[int] = ()) -> Tensor:
    if not axes:
        return x.squeeze()
    return x.squeeze(tuple(axis % x.dim() for axis in axes))


def _unsqueezed(
    x: Shape, whole: Shape | None, parts: list[Shape], **settings: Any
) -> list[Shape] | None:
    if whole is None and not parts:
        return None
    axes = open_sizes(settings["axes"], whole, settings.get("axes_places", ()))
    return [(-1,) * (len(x) + len(axes))]


@op("unsqueeze2", "X AxesTensor? AxesTensorList*", infer=_unsqueezed)
def unsqueeze_op(
    x: Tensor,
    axes_tensor: Tensor | None,
    parts: list[Tensor],
    *,
    axes: Sequence[int] = (),
    axes_places: Sequence[int] = (),
) -> Tensor:
    for axis in run_sizes(axes, axes_tensor, parts, axes_places):
        x = x.unsqueeze(axis)
    return x


def _flattened(x: Shape, **attrs: Any) -> list[Shape]:
    axis = attrs.get("axis", 1)
    return [(product_of(x[:axis]), product_of(x[axis:]))]


@op("flatten2", "X", shape=ShapeRule(_flattened))
def flatten_op(x: Tensor, *, axis: int = 1) -> Tensor:
    rows = 1
    for size in x.shape[:axis]:
        rows *= size
    return x.reshape(rows, -1) if x.numel() else x.reshape(rows, 0)


def _concat_lod(attrs: Mapping[str, Any]) -> LodRule:
    return "function" if attrs.get("axis", 0) == 0 else "share"


def _concat_shape(
    shapes: list[Shape], axis_tensor: Shape | None, **attrs: Any
) -> list[Shape] | None:
    if axis_tensor is not None:
        return [(-1,) * len(shapes[0])]
    rank = len(shapes[0])
    axis = attrs.get("axis", 0)
    if not -rank <= axis < rank:
        raise ValueError(f"axis {axis} is out of range for inputs with {rank} axes")
    axis %= rank
    made = common_shape(shapes, {axis})
    along = [shape[axis] for shape in shapes]
    return [(*made[:axis], sum(along) if min(along) >= 0 else -1, *made[axis + 1 :])]


@op("concat", "X* AxisTensor?", lod=_concat_lod, shape=ShapeRule(_concat_shape))
def concat_op(
    tensors: list[Tensor],
    axis_tensor: Tensor | None,
    *,
    axis: int = 0,
    lods: list[Any] | None = None,
) -> Any:
    """Concatenate tensors. Along the first axis, their sequences are also concatenated."""
    made = torch.cat(tensors, axis if axis_tensor is None else int(axis_tensor))
    return made if lods is None else (made, _joined(lods[0]))


def _joined(lods: list[Lod]) -> Lod:
    if not all(lods) or len({len(lod) for lod in lods}) != 1:
        return ()
    levels = []
    for parts in zip(*lods, strict=True):
        lengths = torch.cat([part.diff() for part in parts])
        levels.append(torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]))
    return tuple(levels)


def _stacked(shapes: list[Shape], **attrs: Any) -> list[Shape]:
    made = common_shape(shapes)
    axis = attrs.get("axis", 0)
    if not -len(made) - 1 <= axis <= len(made):
        raise ValueError(f"axis must be in {-len(made) - 1}..{len(made)}, got {axis}")
    axis %= len(made) + 1
    return [(*made[:axis], len(shapes), *made[axis:])]


@op("stack", "X*", "Y", shape=ShapeRule(_stacked))
def stack_op(tensors: list[Tensor], *, axis: int = 0) -> Tensor:
    return torch.stack(tensors, axis)


def _split_shapes(
    x: Shape, axis_tensor: Shape | None, parts: list[Shape], **attrs: Any
) -> list[Shape] | None:
    axis, num = attrs.get("axis", 0), attrs.get("num", 0)
    sections = list(attrs.get("sections", ()))
    if axis_tensor is not None:
        return [(-1,) * len(x)] * (num or len(sections))
    if not -len(x) <= axis < len(x):
        raise ValueError(f"axis {axis} is out of range for an input with {len(x)} axes")
    axis %= len(x)
    if num:
        if x[axis] >= 0 and x[axis] % num:
            raise ValueError(f"size {x[axis]} of axis {axis} is not divisible by {num}")
        sections = [x[axis] // num if x[axis] >= 0 else -1] * num
    elif -1 in sections and x[axis] >= 0 and not parts:
        sections[sections.index(-1)] = x[axis] - sum(size for size in sections if size >= 0)
    elif -1 not in sections and x[axis] >= 0 and sum(sections) != x[axis]:
        raise ValueError(f"sections {sections} must add up to {x[axis]}")
    return [(*x[:axis], size, *x[axis + 1 :]) for size in sections]


@op("split", "X AxisTensor? SectionsTensorList*", "Out*", shape=ShapeRule(_split_shapes))
def split_op(
    x: Tensor,
    axis_tensor: Tensor | None,
    parts: list[Tensor],
    *,
    axis: int = 0,
    num: int = 0,
    sections: Sequence[int] = (),
    sections_places: Sequence[int] = (),
) -> list[list[Tensor]]:
    axis = axis if axis_tensor is None else int(axis_tensor)
    sections = run_sizes(sections, None, parts, sections_places)
    if num:
        if x.shape[axis] % num:
            raise ValueError(f"size {x.shape[axis]} of axis {axis} is not divisible by {num}")
        return [list(x.chunk(num, axis))]
    sizes = list(sections)
    if -1 in sizes:
        sizes[sizes.index(-1)] = x.shape[axis] - sum(size for size in sizes if size >= 0)
    return [list(torch.split_with_sizes(x, sizes, axis))]


@op("unstack", "X", "Y*", lod="none")
def unstack_op(x: Tensor, *, axis: int = 0) -> list[list[Tensor]]:
    return [list(x.unbind(axis))]


def _expanded(
    x: Shape, whole: Shape | None, parts: list[Shape], **settings: Any
) -> list[Shape] | None:
    if whole is None and not parts:
        return None
    times = open_sizes(settings["expand_times"], whole, settings.get("expand_times_places", ()))
    pairs = zip(x, times, strict=True)
    return [tuple(size * often if min(size, often) > 0 else -1 for size, often in pairs)]


@op("expand", "X ExpandTimesTensor? ExpandTimesTensorList*", infer=_expanded)
def expand_op(
    x: Tensor,
    times_tensor: Tensor | None,
    parts: list[Tensor],
    *,
    expand_times: Sequence[int] = (),
    expand_times_places: Sequence[int] = (),
) -> Tensor:
    """Repeat x along each axis the given number of times."""
    times = run_sizes(expand_times, times_tensor, parts, expand_times_places)
    if len(times) != x.dim():
        raise ValueError(f"expand_times has {len(times)} numbers, expected {x.dim()}")
    return x.repeat(*times)


def _expanded_as(x: Shape, target: Shape, **attrs: Any) -> list[Shape]:
    del attrs
    if len(x) != len(target):
        raise ValueError(
            f"x has {len(x)} axes and the target has {len(target)}, expected the same number"
        )
    return [target]


@op("expand_as", "X target_tensor", shape=ShapeRule(_expanded_as))
def expand_as_op(x: Tensor, target: Tensor) -> Tensor:
    """Repeat x until it is as large as the target."""
    if any(size % part for size, part in zip(target.shape, x.shape, strict=True)):
        raise ValueError(
            f"the target shape {list(target.shape)} is not a multiple of {list(x.shape)}"
        )
    return x.repeat(*(size // part for size, part in zip(target.shape, x.shape, strict=True)))


@op("shape", "Input", lod="none")
def shape_op(x: Tensor) -> Tensor:
    return torch.tensor(x.shape, dtype=torch.int32, device=x.device)


@op("assign", "X")
def assign_op(x: Any) -> Any:
    """Return a copy; the copy of an array of tensors can grow independently."""
    return list(x) if isinstance(x, list) else x.clone()


@op("pad", "X")
def pad_op(x: Tensor, *, paddings: Sequence[int], pad_value: float = 0.0) -> Tensor:
    """Pad x. paddings: the numbers of elements to add before and after each axis."""
    pairs = [paddings[place : place + 2] for place in range(0, len(paddings), 2)]
    flat = [size for pair in reversed(pairs) for size in pair]
    return torch.nn.functional.pad(x, flat, value=pad_value)


@op("reverse", "X", lod="none")
def reverse_op(x: Tensor, *, axis: Sequence[int]) -> Tensor:
    return x.flip(list(axis))


@layer
def cast(x: Variable, dtype: Any) -> Variable:
    """Convert to a different dtype."""
    helper = LayerHelper("cast")
    return helper.add("cast", {"X": helper.check_input(x, "x")}, {"out_dtype": dtype_name(dtype)})


@layer
def concat(
    input: Variable | Sequence[Variable], axis: int | Variable = 0, name: str | None = None
) -> Variable:
    """Concatenate along an axis; for an array, concatenate its elements."""
    helper = LayerHelper("concat", name)
    inputs = [input] if isinstance(input, Variable) else list(input)
    given: dict[str, Any] = {"X": list(map(helper.check_input, inputs))}
    if inputs and inputs[0].type == ARRAY:
        return _joined_elements(helper, inputs, axis, use_stack=False)
    if isinstance(axis, Variable):
        given["AxisTensor"] = axis
        return helper.add("concat", given, {"axis": -1}, dtype=inputs[0].dtype)
    return helper.add("concat", given, {"axis": axis})


def _joined_elements(
    helper: LayerHelper, inputs: Sequence[Variable], axis: Any, *, use_stack: bool
) -> Variable:
    """Concatenate or stack the elements of an array along an axis."""
    if len(inputs) != 1 or isinstance(axis, Variable):
        raise helper.refuse("expected one array and a number for the axis")
    (array,) = inputs
    out, index = helper.new_variable(array.dtype), helper.new_variable("int32", stop_gradient=True)
    attrs = {"axis": axis, "use_stack": use_stack}
    outputs = {"Out": out, "OutIndex": index}
    helper.append_op("tensor_array_to_tensor", {"X": array}, outputs, attrs)
    sizes = list(array.shape)
    axis %= len(sizes) + use_stack
    out.shape = (*sizes[:axis], -1, *sizes[axis + (not use_stack) :])
    index.shape = (-1,)
    return out


@layer
def reshape(
    x: Variable,
    shape: Sizes,
    actual_shape: Variable | None = None,
    act: str | None = None,
    inplace: bool = False,
    name: str | None = None,
) -> Variable:
    """Change the shape; 0 keeps the size of that axis, and one -1 is inferred from the rest."""
    helper = LayerHelper("reshape2", name)
    del inplace
    inputs, attrs = sizes_of(helper, "shape", shape, "Shape")
    if actual_shape is not None:
        inputs = {"ShapeTensor": helper.check_input(actual_shape, "actual_shape")}
    inputs["X"] = helper.check_input(x, "x")
    made = helper.add("reshape2", inputs, attrs, dtype=x.dtype)
    helper.skip_names(1)  # Fluid keeps the old shape
    return helper.activate(made, act)


@layer
def transpose(x: Variable, perm: Sequence[int], name: str | None = None) -> Variable:
    """Reorder the axes by `perm`."""
    helper = LayerHelper("transpose", name)
    return helper.add("transpose2", {"X": helper.check_input(x, "x")}, {"axis": list(perm)})


@layer
def squeeze(input: Variable, axes: Sequence[int], name: str | None = None) -> Variable:
    """Remove these axes of size 1, or all such axes if none are given."""
    helper = LayerHelper("squeeze", name)
    return helper.add("squeeze2", {"X": helper.check_input(input)}, {"axes": list(axes)})


@layer
def unsqueeze(input: Variable, axes: int | Sizes, name: str | None = None) -> Variable:
    """Insert axes of size 1."""
    helper = LayerHelper("unsqueeze2", name)
    if not isinstance(axes, (int, list, tuple, Variable)):
        raise TypeError(f"axes must be a number, a list or a Variable, got {axes!r}")
    places = [axes] if isinstance(axes, int) else axes
    inputs, attrs = sizes_of(helper, "axes", places, "Axes")
    inputs["X"] = helper.check_input(input)
    return helper.add("unsqueeze2", inputs, attrs, dtype=input.dtype)


@layer
def flatten(x: Variable, axis: int = 1, name: str | None = None) -> Variable:
    """Reshape to a matrix: axes before `axis` are rows, the others columns."""
    helper = LayerHelper("flatten", name)
    return helper.add("flatten2", {"X": helper.check_input(x, "x")}, {"axis": axis})


@layer
def stack(x: Variable | Sequence[Variable], axis: int = 0) -> Variable:
    """Stack along a new axis."""
    helper = LayerHelper("stack")
    inputs = [x] if isinstance(x, Variable) else list(x)
    if inputs and inputs[0].type == ARRAY:
        return _joined_elements(helper, inputs, axis, use_stack=True)
    return helper.add("stack", {"X": inputs}, {"axis": axis}, slot="Y")


@layer
def split(
    input: Variable,
    num_or_sections: int | Sequence[int | Variable],
    dim: int | Variable = -1,
    name: str | None = None,
) -> list[Variable]:
    """Split along an axis into a number of equal parts, or into parts of given sizes."""
    helper = LayerHelper("split", name)
    if not isinstance(num_or_sections, (int, list, tuple)):
        raise TypeError(f"num_or_sections must be a number or a list, got {num_or_sections!r}")
    if not isinstance(dim, (int, Variable)):
        raise TypeError(f"dim must be a number or a Variable, got {dim!r}")
    inputs: dict[str, Any] = {"X": helper.check_input(input)}
    attrs: dict[str, Any] = {"axis": 0 if isinstance(dim, Variable) else dim}
    if isinstance(dim, Variable):
        inputs["AxisTensor"] = dim
    if isinstance(num_or_sections, int):
        count, attrs["num"] = num_or_sections, num_or_sections
        known = None if isinstance(dim, Variable) else input.shape[dim]
        if count <= 0 or (known is not None and known >= 0 and known % count):
            raise helper.refuse(
                f"axis {dim} (size {known}) cannot be split into {count} equal parts"
            )
    else:
        count = len(num_or_sections)
        more, sizes = sizes_of(helper, "sections", num_or_sections, "Sections")
        inputs |= more
        attrs |= sizes
    outs = [helper.new_variable(input.dtype) for _ in range(count)]
    helper.append_op("split", inputs, {"Out": outs}, attrs)
    if isinstance(dim, Variable):
        for out in outs:
            out.shape = (-1,) * len(input.shape)
    return outs


@layer
def unstack(x: Variable, axis: int = 0, num: int | None = None) -> list[Variable]:
    """Return the slices of x along an axis, without that axis."""
    helper = LayerHelper("unstack")
    count = helper.check_input(x, "x").shape[axis] if num is None else num
    if count < 0:
        raise helper.refuse(f"the size of axis {axis} of {x} is unknown; pass num")
    outs = [helper.new_variable(x.dtype) for _ in range(count)]
    helper.append_op("unstack", {"X": x}, {"Y": outs}, {"axis": axis})
    return outs


@layer
def expand(x: Variable, expand_times: Sizes, name: str | None = None) -> Variable:
    """Repeat x along each axis the given number of times."""
    helper = LayerHelper("expand", name)
    inputs, attrs = sizes_of(helper, "expand_times", expand_times, "ExpandTimes")
    inputs["X"] = helper.check_input(x, "x")
    return helper.add("expand", inputs, attrs, dtype=x.dtype)


@layer
def expand_as(x: Variable, target_tensor: Variable, name: str | None = None) -> Variable:
    """Repeat x until it has the shape of the target."""
    helper = LayerHelper("expand_as", name)
    target = helper.check_input(target_tensor, "target_tensor")
    return helper.add("expand_as", {"X": helper.check_input(x, "x"), "target_tensor": target})


@layer
def shape(input: Variable) -> Variable:
    """Return the input's shape at run time, as an int32 vector."""
    helper = LayerHelper("shape")
    out = helper.new_variable("int32", stop_gradient=True)
    helper.append_op("shape", {"Input": helper.check_input(input)}, {"Out": out})
    return out


@layer
def assign(input: Variable | Any, output: Variable | None = None) -> Variable:
    """Return a copy of a variable, or of an array."""
    helper = LayerHelper("assign")
    out = helper.new_variable() if output is None else output
    if isinstance(input, Variable):
        helper.append_op("assign", {"X": input}, {"Out": out})
        return out
    array = np.asarray(input)
    attrs = {
        "shape": list(array.shape),
        "dtype": dtype_name(array.dtype),
        "values": array.reshape(-1).tolist(),
    }
    helper.append_op("assign_value", {}, {"Out": out}, attrs)
    return out


@layer
def pad(
    x: Variable, paddings: Sequence[int], pad_value: float = 0.0, name: str | None = None
) -> Variable:
    """Pad x with pad_value. paddings: the numbers of elements to add before and after each axis."""
    helper = LayerHelper("pad", name)
    attrs = {"paddings": list(paddings), "pad_value": float(pad_value)}
    return helper.add("pad", {"X": helper.check_input(x, "x")}, attrs)


@layer
def reverse(x: Variable, axis: int | Sequence[int]) -> Variable:
    """Reverse the order of elements along the given axes."""
    helper = LayerHelper("reverse")
    axes = [axis] if isinstance(axis, int) else list(axis)
    return helper.add("reverse", {"X": helper.check_input(x, "x")}, {"axis": axes})
