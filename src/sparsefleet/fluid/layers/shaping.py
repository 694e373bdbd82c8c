"""The same elements in other shapes and types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sparsefleet.fluid.dtypes import dtype_name
from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.layer_helper import LayerHelper, layer
from sparsefleet.fluid.layers.sizes import Sizes, sizes_of

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


@layer
def cast(x: Variable, dtype: Any) -> Variable:
    """In another type."""
    helper = LayerHelper("cast")
    return helper.add("cast", {"X": helper.check_input(x, "x")}, {"out_dtype": dtype_name(dtype)})


@layer
def concat(
    input: Variable | Sequence[Variable], axis: int = 0, name: str | None = None
) -> Variable:
    """One behind the other along an axis."""
    helper = LayerHelper("concat", name)
    inputs = [input] if isinstance(input, Variable) else list(input)
    return helper.add("concat", {"X": list(map(helper.check_input, inputs))}, {"axis": axis})


@layer
def reshape(
    x: Variable,
    shape: Sizes,
    actual_shape: Variable | None = None,
    act: str | None = None,
    inplace: bool = False,
    name: str | None = None,
) -> Variable:
    """In another shape: 0 keeps the size that x has there, one -1 takes what is left."""
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
    """With its axes in the order `perm`."""
    helper = LayerHelper("transpose", name)
    return helper.add("transpose2", {"X": helper.check_input(x, "x")}, {"axis": list(perm)})


@layer
def squeeze(input: Variable, axes: Sequence[int], name: str | None = None) -> Variable:
    """Without these axes, of size 1; without all such if none are given."""
    helper = LayerHelper("squeeze", name)
    return helper.add("squeeze2", {"X": helper.check_input(input)}, {"axes": list(axes)})


@layer
def unsqueeze(input: Variable, axes: int | Sequence[int], name: str | None = None) -> Variable:
    """With axes of size 1 put in at these places."""
    helper = LayerHelper("unsqueeze2", name)
    places = [axes] if isinstance(axes, int) else list(axes)
    return helper.add("unsqueeze2", {"X": helper.check_input(input)}, {"axes": places})


@layer
def flatten(x: Variable, axis: int = 1, name: str | None = None) -> Variable:
    """A matrix: sizes before `axis` are rows, the others columns."""
    helper = LayerHelper("flatten", name)
    return helper.add("flatten2", {"X": helper.check_input(x, "x")}, {"axis": axis})


@layer
def stack(x: Variable | Sequence[Variable], axis: int = 0) -> Variable:
    """Along a new axis."""
    helper = LayerHelper("stack")
    inputs = [x] if isinstance(x, Variable) else list(x)
    return helper.add("stack", {"X": inputs}, {"axis": axis}, slot="Y")


@layer
def split(
    input: Variable, num_or_sections: int | Sequence[int], dim: int = -1, name: str | None = None
) -> list[Variable]:
    """Parts along an axis: so many equal ones, or of these sizes."""
    helper = LayerHelper("split", name)
    attrs: dict[str, Any]
    if isinstance(num_or_sections, int):
        count, attrs = num_or_sections, {"num": num_or_sections, "axis": dim}
    else:
        count, attrs = len(num_or_sections), {"sections": list(num_or_sections), "axis": dim}
    outs = [helper.new_variable(helper.check_input(input).dtype) for _ in range(count)]
    helper.append_op("split", {"X": input}, {"Out": outs}, attrs)
    return outs


@layer
def unstack(x: Variable, axis: int = 0, num: int | None = None) -> list[Variable]:
    """The slices along an axis."""
    helper = LayerHelper("unstack")
    count = helper.check_input(x, "x").shape[axis] if num is None else num
    if count < 0:
        raise helper.refuse(f"the size of axis {axis} of {x} is not known: give num")
    outs = [helper.new_variable(x.dtype) for _ in range(count)]
    helper.append_op("unstack", {"X": x}, {"Y": outs}, {"axis": axis})
    return outs


@layer
def expand(x: Variable, expand_times: Sizes, name: str | None = None) -> Variable:
    """Repeated so often along each axis."""
    helper = LayerHelper("expand", name)
    inputs, attrs = sizes_of(helper, "expand_times", expand_times, "ExpandTimes")
    inputs["X"] = helper.check_input(x, "x")
    return helper.add("expand", inputs, attrs, dtype=x.dtype)


@layer
def expand_as(x: Variable, target_tensor: Variable, name: str | None = None) -> Variable:
    """Repeated until it has the shape of another variable."""
    helper = LayerHelper("expand_as", name)
    target = helper.check_input(target_tensor, "target_tensor")
    return helper.add("expand_as", {"X": helper.check_input(x, "x"), "target_tensor": target})


@layer
def shape(input: Variable) -> Variable:
    """The sizes at run time: int32."""
    helper = LayerHelper("shape")
    out = helper.new_variable("int32", stop_gradient=True)
    helper.append_op("shape", {"Input": helper.check_input(input)}, {"Out": out})
    return out


@layer
def assign(input: Variable | Any, output: Variable | None = None) -> Variable:
    """A copy of a variable, or of an array."""
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
    """With values put before and after, axis by axis."""
    helper = LayerHelper("pad", name)
    attrs = {"paddings": list(paddings), "pad_value": float(pad_value)}
    return helper.add("pad", {"X": helper.check_input(x, "x")}, attrs)


@layer
def reverse(x: Variable, axis: int | Sequence[int]) -> Variable:
    """Backwards along some axes."""
    helper = LayerHelper("reverse")
    axes = [axis] if isinstance(axis, int) else list(axis)
    return helper.add("reverse", {"X": helper.check_input(x, "x")}, {"axis": axes})
