"""Arrays of tensors, written and read by number."""

from __future__ import annotations

from typing import Any

from sparsefleet.fluid import unique_name
from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.layer_helper import LayerHelper, layer
from sparsefleet.fluid.variable import ARRAY

__all__ = [
    "array_length",
    "array_read",
    "array_to_lod_tensor",
    "array_write",
    "create_array",
    "lod_rank_table",
    "lod_tensor_to_array",
    "max_sequence_len",
    "reorder_lod_tensor_by_rank",
    "shrink_memory",
    "tensor_array_to_tensor",
]


def _new_array(helper: LayerHelper, dtype: Any, lod_level: int = 0) -> Variable:
    name = unique_name.generate(f"{helper.name}.out")
    return helper.main_program.current_block().create_var(
        name, dtype=dtype, lod_level=lod_level, type=ARRAY
    )


def _check_array(helper: LayerHelper, array: Any) -> Variable:
    found = helper.check_input(array, "array")
    if found.type != ARRAY:
        raise TypeError(
            f"layers.{helper.layer_type}: array must be one of create_array, got {array}"
        )
    return found


@layer
def create_array(dtype: Any) -> Variable:
    """An array without elements."""
    helper = LayerHelper("array")
    made = _new_array(helper, dtype)
    helper.append_op("create_array", {}, {"Out": made})
    return made


@layer
def array_write(x: Variable, i: Variable, array: Variable | None = None) -> Variable:
    """Puts x at place i int64[1] of an array, which grows if need be; of a new one for None."""
    helper = LayerHelper("array_write")
    array = create_array(helper.check_input(x, "x").dtype) if array is None else array
    _check_array(helper, array)
    inputs = {"X": x, "I": helper.check_input(i, "i"), "Array": array}
    helper.append_op("write_to_array", inputs, {"Out": array})
    array.dtype, array.lod_level = x.dtype, x.lod_level
    return array


@layer
def array_read(array: Variable, i: Variable) -> Variable:
    """The element at place i int64[1]."""
    helper = LayerHelper("array_read")
    inputs = {"X": _check_array(helper, array), "I": helper.check_input(i, "i")}
    out = helper.add("read_from_array", inputs)
    out.dtype, out.lod_level = array.dtype, array.lod_level
    return out


@layer
def array_length(array: Variable) -> Variable:
    """How many elements it has: int64[1]."""
    helper = LayerHelper("array_length")
    out = helper.add("lod_array_length", {"X": _check_array(helper, array)})
    out.dtype, out.stop_gradient = "int64", True
    return out


@layer
def tensor_array_to_tensor(
    input: Variable, axis: int = 1, name: str | None = None, use_stack: bool = False
) -> tuple[Variable, Variable]:
    """All elements side by side, or stacked, and the size of each along the axis: int32."""
    helper = LayerHelper("tensor_array_to_tensor", name)
    out = helper.new_variable(_check_array(helper, input).dtype)
    index = helper.new_variable("int32", stop_gradient=True)
    outputs = {"Out": out, "OutIndex": index}
    attrs = {"axis": axis, "use_stack": use_stack}
    helper.append_op("tensor_array_to_tensor", {"X": input}, outputs, attrs)
    sizes = list(input.shape)
    if use_stack:
        sizes.insert(axis, -1)
    else:
        sizes[axis] = -1
    out.shape, index.shape = tuple(sizes), (-1,)
    return out, index


@layer
def lod_rank_table(x: Variable, level: int = 0) -> Variable:
    """The sequences of x by length, the longest first: int64[B, 2], number and length."""
    helper = LayerHelper("lod_rank_table")
    out = helper.add("lod_rank_table", {"X": helper.check_input(x, "x")}, {"level": level})
    out.dtype, out.stop_gradient = "int64", True
    return out


@layer
def max_sequence_len(rank_table: Variable) -> Variable:
    """The length of the longest sequence: int64[1]."""
    helper = LayerHelper("max_sequence_len")
    out = helper.add("max_sequence_len", {"RankTable": helper.check_input(rank_table)})
    out.dtype, out.stop_gradient = "int64", True
    return out


@layer
def lod_tensor_to_array(x: Variable, table: Variable) -> Variable:
    """Step t of all sequences that have one, as element t; the longest sequences first."""
    helper = LayerHelper("lod_tensor_to_array")
    out = _new_array(helper, helper.check_input(x, "x").dtype, max(x.lod_level - 1, 0))
    helper.append_op("lod_tensor_to_array", {"X": x, "RankTable": table}, {"Out": out})
    return out


@layer
def array_to_lod_tensor(x: Variable, table: Variable) -> Variable:
    """The sequences again that `lod_tensor_to_array` took apart."""
    helper = LayerHelper("array_to_lod_tensor")
    out = helper.add("array_to_lod_tensor", {"X": _check_array(helper, x), "RankTable": table})
    out.dtype, out.lod_level = x.dtype, x.lod_level + 1
    return out


@layer
def shrink_memory(x: Variable, i: Variable, table: Variable) -> Variable:
    """The rows of x whose sequences have a step i."""
    helper = LayerHelper("shrink_memory")
    inputs = {"X": helper.check_input(x, "x"), "RankTable": table, "I": i}
    out = helper.add("shrink_rnn_memory", inputs)
    out.dtype, out.lod_level = x.dtype, x.lod_level
    return out


@layer
def reorder_lod_tensor_by_rank(x: Variable, rank_table: Variable) -> Variable:
    """Rows or sequences of x in the order of a rank table."""
    helper = LayerHelper("reorder_lod_tensor_by_rank")
    inputs = {"X": helper.check_input(x, "x"), "RankTable": rank_table}
    out = helper.add("reorder_lod_tensor_by_rank", inputs)
    out.dtype, out.lod_level = x.dtype, x.lod_level
    return out
