"""Arrays of tensors, and sequences split into steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from sparsefleet.fluid.framework import Variable, unique_name
from sparsefleet.fluid.framework.variable import ARRAY
from sparsefleet.fluid.lowering.body import Held
from sparsefleet.fluid.lowering.lowered import Lod
from sparsefleet.fluid.lowering.registry import op
from sparsefleet.fluid.operators.layer_helper import LayerHelper, layer
from sparsefleet.fluid.operators.sequences import level_of

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


# Arrays of tensors, and sequences split into steps. In shapes, B is the number of sequences and N
# the total number of rows.
#
# An array is a list of (tensor, LoD). A rank table is int64[B, 2]: index and length of each
# sequence, longest first.


Tensor = torch.Tensor
Array = list[Held]
Shape = tuple[int, ...]


def _same(shape: Shape, *others: Any, **settings: Any) -> list[Shape]:
    del others, settings
    return [shape]


def _open(shape: Shape, *others: Any, **settings: Any) -> list[Shape]:
    del others, settings
    return [(-1, *shape[1:])]


def _one(*shapes: Any, **settings: Any) -> list[Shape]:
    del shapes, settings
    return [(1,)]


def _number(index: Tensor) -> int:
    if index.numel() != 1:
        raise ValueError(f"the index must have one element, got shape {list(index.shape)}")
    return int(index)


@op("create_array", "", lod="none", infer=list)
def create_array_op() -> Array:
    return []


@op("write_to_array", "X I Array", lod="function", infer=_same)
def write_to_array(x: Any, index: Tensor, array: Array, *, lods: list[Any]) -> tuple[Array, Lod]:
    """Return a copy of the array with x at the index. Earlier elements may have no value."""
    place, made = _number(index), list(array)
    made += [(None, ())] * (place + 1 - len(made))
    made[place] = (x, lods[0])
    return made, ()


@op("read_from_array", "X I", lod="function", infer=_same)
def read_from_array(array: Array, index: Tensor, *, lods: list[Any]) -> Held:
    del lods
    place = _number(index)
    if not 0 <= place < len(array) or array[place][0] is None:
        raise ValueError(
            f"nothing was written at index {place}, and the array has {len(array)} elements"
        )
    return array[place]


@op("lod_array_length", "X", lod="none", infer=_one)
def array_length_op(array: Array) -> Tensor:
    return torch.tensor([len(array)])


@op("tensor_array_to_tensor", "X", "Out OutIndex", lod="none", infer=lambda *_, **__: [])
def tensor_array_to_tensor_op(
    array: Array, *, axis: int = 1, use_stack: bool = False
) -> tuple[Tensor, Tensor]:
    """Concatenate or stack all elements; also return each element's size along the axis: int32."""
    tensors = [value for value, _ in array]
    sizes = [tensor.shape[axis] if axis < tensor.dim() else 1 for tensor in tensors]
    together = torch.stack(tensors, axis) if use_stack else torch.cat(tensors, axis)
    return together, torch.tensor(sizes, dtype=torch.int32)


@op("lod_rank_table", "X", lod="function", infer=lambda *_, **__: [(-1, 2)])
def lod_rank_table_op(x: Tensor, *, lods: list[Any], level: int = 0) -> tuple[Tensor, Lod]:
    del x
    lengths = level_of(lods[0], "X", level).diff()
    order = torch.argsort(lengths, descending=True, stable=True)
    return torch.stack([order, lengths[order]], 1), ()


@op("max_sequence_len", "RankTable", lod="none", infer=_one)
def max_sequence_len_op(table: Tensor) -> Tensor:
    return table[:1, 1] if len(table) else table.new_zeros(1)


@op("lod_tensor_to_array", "X RankTable", lod="function", infer=_open)
def lod_tensor_to_array_op(x: Tensor, table: Tensor, *, lods: list[Any]) -> tuple[Array, Lod]:
    """Return an array whose element t holds item t of all sequences that have it, longest first.

    An item is a row or, for nested sequences, an inner sequence.
    """
    lod = lods[0]
    begins = level_of(lod, "X", 0)[:-1][table[:, 0]]
    longest = int(table[0, 1]) if len(table) else 0
    made: Array = []
    for time in range(longest):
        places = begins[: int((table[:, 1] > time).sum())] + time
        made.append(_items(x, places, lod[1:]))
    return made, ()


def _items(x: Tensor, places: Tensor, lod: Lod) -> Held:
    """Select rows by index or, with a LoD, sequences with all their levels."""
    if not lod:
        return x[places], ()
    levels: list[Tensor] = []
    for offsets in lod:
        lengths = offsets.diff()[places]
        levels.append(torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]))
        starts = torch.repeat_interleave(offsets[:-1][places] - levels[-1][:-1], lengths)
        places = starts + torch.arange(len(starts))
    return x[places], tuple(levels)


@op("array_to_lod_tensor", "X RankTable", lod="function", infer=_open)
def array_to_lod_tensor_op(array: Array, table: Tensor, *, lods: list[Any]) -> Held:
    """Restore the sequences that `lod_tensor_to_array` split, in their original order."""
    del lods
    ranks = torch.argsort(table[:, 0])
    lengths = table[ranks, 1]
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    sizes = [int((table[:, 1] > time).sum()) for time in range(len(array))]
    firsts = torch.tensor([0, *sizes]).cumsum(0)[:-1]  # start of each step
    which = torch.repeat_interleave(ranks, lengths)
    time = torch.arange(len(which)) - torch.repeat_interleave(offsets[:-1], lengths)
    places = firsts[time] + which
    inner = [lod for _, lod in array if lod]
    together = torch.cat([value for value, _ in array])
    if not inner:
        return together[places], (offsets,)
    levels = tuple(_joined(parts) for parts in zip(*inner, strict=True))
    rows, below = _items(together, places, levels)
    return rows, (offsets, *below)


def _joined(parts: tuple[Tensor, ...]) -> Tensor:
    """Return one LoD level of several concatenated tensors."""
    lengths = torch.cat([part.diff() for part in parts])
    return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])


@op("shrink_rnn_memory", "X RankTable I", lod="function", infer=_open)
def shrink_memory_op(x: Tensor, table: Tensor, index: Tensor, *, lods: list[Any]) -> Held:
    """Return the leading rows (or sequences) of x that belong to sequences with more than `index`
    steps.
    """
    count = int((table[:, 1] > _number(index)).sum())
    return _items(x, torch.arange(count), lods[0]) if lods[0] else (x[:count], ())


@op("reorder_lod_tensor_by_rank", "X RankTable", lod="function", infer=_open)
def reorder_by_rank(x: Tensor, table: Tensor, *, lods: list[Any]) -> Held:
    """Reorder rows or sequences by a rank table."""
    return _items(x, table[:, 0], lods[0])


@op(
    "split_lod_tensor",
    "X Mask",
    "OutTrue OutFalse",
    lod="function",
    infer=lambda x, *_, **__: [(-1, *x[1:])] * 2,
)
def split_by_mask(
    x: Tensor, mask: Tensor, *, lods: list[Any], level: int = 0
) -> tuple[tuple[Tensor, Tensor], list[Lod]]:
    """Split rows or, with a LoD, the sequences of a level by mask [B, 1]."""
    chosen = mask.reshape(-1).bool()
    sides = [_taken(x, lods[0][level:], one.nonzero().reshape(-1)) for one in (chosen, ~chosen)]
    return (sides[0][0], sides[1][0]), [sides[0][1], sides[1][1]]


@op("merge_lod_tensor", "InTrue InFalse Mask", lod="function", infer=_open)
def merge_by_mask(true: Tensor, false: Tensor, mask: Tensor, *, lods: list[Any]) -> Held:
    """Merge rows or sequences in the order they had before `split_lod_tensor`."""
    chosen = mask.reshape(-1).bool()
    order = torch.argsort(torch.argsort((~chosen).long(), stable=True))
    levels = tuple(
        torch.cat([first, second[1:] + first[-1]])
        for first, second in zip(lods[0], lods[1], strict=bool(lods[0] and lods[1]))
    )
    return _taken(torch.cat([true, false]), levels, order)


def _taken(x: Tensor, lod: Lod, items: Tensor) -> Held:
    """Return the rows of x selected by `items` or, with a LoD, the first-level sequences and their
    LoD."""
    levels = []
    for offsets in lod:
        begins, lengths = offsets[:-1][items], offsets.diff()[items]
        ends = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        levels.append(ends)
        within = torch.arange(int(ends[-1])) - torch.repeat_interleave(ends[:-1], lengths)
        items = torch.repeat_interleave(begins, lengths) + within
    return x[items], tuple(levels)


def _new_array(helper: LayerHelper, dtype: Any, lod_level: int = 0) -> Variable:
    name = unique_name.generate(f"{helper.name}.out")
    return helper.main_program.current_block().create_var(
        name, dtype=dtype, lod_level=lod_level, type=ARRAY
    )


def _check_array(helper: LayerHelper, array: Any) -> Variable:
    found = helper.check_input(array, "array")
    if found.type != ARRAY:
        raise TypeError(
            f"layers.{helper.layer_type}: array must come from create_array, got {array}"
        )
    return found


@layer
def create_array(dtype: Any) -> Variable:
    """Create an empty array."""
    helper = LayerHelper("array")
    made = _new_array(helper, dtype)
    helper.append_op("create_array", {}, {"Out": made})
    return made


@layer
def array_write(x: Variable, i: Variable, array: Variable | None = None) -> Variable:
    """Write x at index i int64[1] of an array, which grows as needed; None creates a new array."""
    helper = LayerHelper("array_write")
    array = create_array(helper.check_input(x, "x").dtype) if array is None else array
    _check_array(helper, array)
    inputs = {"X": x, "I": helper.check_input(i, "i"), "Array": array}
    helper.append_op("write_to_array", inputs, {"Out": array})
    array.dtype, array.lod_level = x.dtype, x.lod_level
    return array


@layer
def array_read(array: Variable, i: Variable) -> Variable:
    """Return the element at index i int64[1]."""
    helper = LayerHelper("array_read")
    inputs = {"X": _check_array(helper, array), "I": helper.check_input(i, "i")}
    out = helper.add("read_from_array", inputs)
    out.dtype, out.lod_level = array.dtype, array.lod_level
    return out


@layer
def array_length(array: Variable) -> Variable:
    """Return the number of elements: int64[1]."""
    helper = LayerHelper("array_length")
    out = helper.add("lod_array_length", {"X": _check_array(helper, array)})
    out.dtype, out.stop_gradient = "int64", True
    return out


@layer
def tensor_array_to_tensor(
    input: Variable, axis: int = 1, name: str | None = None, use_stack: bool = False
) -> tuple[Variable, Variable]:
    """Concatenate or stack all elements; also return each element's size along the axis: int32."""
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
def lod_rank_table(x: Variable | Sequence[Variable], level: int = 0) -> Variable:
    """Rank the sequences in x, longest first; return rows (index, length): int64[B, 2]."""
    helper = LayerHelper("lod_rank_table")
    if isinstance(x, (list, tuple)) and len(x) == 1:
        (x,) = x
    out = helper.add("lod_rank_table", {"X": helper.check_input(x, "x")}, {"level": level})
    out.dtype, out.stop_gradient = "int64", True
    return out


@layer
def max_sequence_len(rank_table: Variable) -> Variable:
    """Return the length of the longest sequence: int64[1]."""
    helper = LayerHelper("max_sequence_len")
    out = helper.add("max_sequence_len", {"RankTable": helper.check_input(rank_table)})
    out.dtype, out.stop_gradient = "int64", True
    return out


@layer
def lod_tensor_to_array(x: Variable, table: Variable) -> Variable:
    """Return an array whose element t holds step t of all sequences that have it, longest first."""
    helper = LayerHelper("lod_tensor_to_array")
    out = _new_array(helper, helper.check_input(x, "x").dtype, max(x.lod_level - 1, 0))
    helper.append_op("lod_tensor_to_array", {"X": x, "RankTable": table}, {"Out": out})
    return out


@layer
def array_to_lod_tensor(x: Variable, table: Variable) -> Variable:
    """Join the sequences that `lod_tensor_to_array` split, in their original order."""
    helper = LayerHelper("array_to_lod_tensor")
    out = helper.add("array_to_lod_tensor", {"X": _check_array(helper, x), "RankTable": table})
    out.dtype, out.lod_level = x.dtype, x.lod_level + 1
    return out


@layer
def shrink_memory(x: Variable, i: Variable, table: Variable) -> Variable:
    """Return the rows of x that belong to sequences that have step i."""
    helper = LayerHelper("shrink_memory")
    inputs = {"X": helper.check_input(x, "x"), "RankTable": table, "I": i}
    out = helper.add("shrink_rnn_memory", inputs)
    out.dtype, out.lod_level = x.dtype, x.lod_level
    return out


@layer
def reorder_lod_tensor_by_rank(x: Variable, rank_table: Variable) -> Variable:
    """Reorder the rows or sequences in x by a rank table."""
    helper = LayerHelper("reorder_lod_tensor_by_rank")
    inputs = {"X": helper.check_input(x, "x"), "RankTable": rank_table}
    out = helper.add("reorder_lod_tensor_by_rank", inputs)
    out.dtype, out.lod_level = x.dtype, x.lod_level
    return out
