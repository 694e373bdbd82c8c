"""Parts of a variable, from somewhere to somewhere."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

from sparsefleet.fluid import unique_name
from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.layer_helper import LayerHelper, layer
from sparsefleet.fluid.layers.filling import fill_constant
from sparsefleet.fluid.layers.sizes import Sizes, sizes_of

__all__ = ["crop", "crop_tensor", "slice", "strided_slice"]

_END = 10_000_000  # Fluid's word for the last place


@layer
def slice(input: Variable, axes: Sequence[int], starts: Sizes, ends: Sizes) -> Variable:
    """From starts to ends along some axes."""
    helper = LayerHelper("slice")
    return _sliced(helper, "slice", input, axes, Starts=starts, Ends=ends)


@layer
def strided_slice(
    input: Variable, axes: Sequence[int], starts: Sizes, ends: Sizes, strides: Sizes
) -> Variable:
    """Each strides-th place from starts to ends along some axes; backwards if it is negative."""
    helper = LayerHelper("strided_slice")
    return _sliced(helper, "strided_slice", input, axes, Starts=starts, Ends=ends, Strides=strides)


def _sliced(
    helper: LayerHelper, type: str, x: Variable, axes: Sequence[int], **bounds: Sizes
) -> Variable:
    rank = len(helper.check_input(x).shape)
    for slot, value in bounds.items():
        if not isinstance(value, Variable) and len(value) != len(axes):
            raise helper.refuse(f"{len(axes)} axes and {len(value)} {slot.lower()}: wanted as many")
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
    """`x[item]`: slices keep their axis, places lose it."""
    helper = LayerHelper("slice", f"{x.name}_slice")
    items = item if isinstance(item, tuple) else (item,)
    if len(items) > len(x.shape):
        raise helper.refuse(f"{len(items)} indices for {x}")
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
    """The part of this shape from the offsets on; -1 in the shape is all that is left."""
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
    """The part of this shape, or of that of a variable, from the offsets on."""
    helper = LayerHelper("crop", name)
    begin = [0] * len(helper.check_input(x, "x").shape) if offsets is None else offsets
    if isinstance(shape, Variable) and not isinstance(begin, Variable):
        return helper.add("crop_like", {"X": x, "Y": shape}, {"offsets": list(begin)})
    return crop_tensor(x, shape, begin, name=helper.name)
