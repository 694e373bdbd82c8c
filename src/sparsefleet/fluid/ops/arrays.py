"""Arrays of tensors, and sequences cut into steps. Letters: B sequences, N rows of all of them.

An array is a list of (tensor, LoD). A rank table is int64[B, 2]: the number and the length of each
sequence, the longest first.
"""

from __future__ import annotations

from typing import Any

import torch

from sparsefleet.fluid.lowering.body import Held
from sparsefleet.fluid.lowering.lowered import Lod
from sparsefleet.fluid.lowering.registry import op
from sparsefleet.fluid.ops.sequences import level_of

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
        raise ValueError(f"its index must have one element, got shape {list(index.shape)}")
    return int(index)


@op("create_array", "", lod="none", infer=list)
def create_array() -> Array:
    return []


@op("write_to_array", "X I Array", lod="function", infer=_same)
def write_to_array(x: Any, index: Tensor, array: Array, *, lods: list[Any]) -> tuple[Array, Lod]:
    """A copy of the array with x at the index; what lies between has no value."""
    place, made = _number(index), list(array)
    made += [(None, ())] * (place + 1 - len(made))
    made[place] = (x, lods[0])
    return made, ()


@op("read_from_array", "X I", lod="function", infer=_same)
def read_from_array(array: Array, index: Tensor, *, lods: list[Any]) -> Held:
    del lods
    place = _number(index)
    if not 0 <= place < len(array) or array[place][0] is None:
        raise ValueError(f"nothing was written at {place}: the array has {len(array)} elements")
    return array[place]


@op("lod_array_length", "X", lod="none", infer=_one)
def array_length(array: Array) -> Tensor:
    return torch.tensor([len(array)])


@op("tensor_array_to_tensor", "X", "Out OutIndex", lod="none", infer=lambda *_, **__: [])
def tensor_array_to_tensor(
    array: Array, *, axis: int = 1, use_stack: bool = False
) -> tuple[Tensor, Tensor]:
    """All elements side by side (or stacked), and the size of each along the axis: int32."""
    tensors = [value for value, _ in array]
    sizes = [1 if use_stack else tensor.shape[axis] for tensor in tensors]
    together = torch.stack(tensors, axis) if use_stack else torch.cat(tensors, axis)
    return together, torch.tensor(sizes, dtype=torch.int32)


@op("lod_rank_table", "X", lod="function", infer=lambda *_, **__: [(-1, 2)])
def lod_rank_table(x: Tensor, *, lods: list[Any], level: int = 0) -> tuple[Tensor, Lod]:
    del x
    lengths = level_of(lods[0], "X", level).diff()
    order = torch.argsort(lengths, descending=True, stable=True)
    return torch.stack([order, lengths[order]], 1), ()


@op("max_sequence_len", "RankTable", lod="none", infer=_one)
def max_sequence_len(table: Tensor) -> Tensor:
    return table[:1, 1] if len(table) else table.new_zeros(1)


@op("lod_tensor_to_array", "X RankTable", lod="function", infer=_open)
def lod_tensor_to_array(x: Tensor, table: Tensor, *, lods: list[Any]) -> tuple[Array, Lod]:
    """Element t: item t of each sequence that has one, the longest sequences first.

    An item is a row, or, of sequences of sequences, one of these.
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
    """Rows by number; with a LoD, sequences by number, all their levels with them."""
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
def array_to_lod_tensor(array: Array, table: Tensor, *, lods: list[Any]) -> Held:
    """Sequences in the order they had, of the elements that `lod_tensor_to_array` gave."""
    del lods
    ranks = torch.argsort(table[:, 0])
    lengths = table[ranks, 1]
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    sizes = [int((table[:, 1] > time).sum()) for time in range(len(array))]
    firsts = torch.tensor([0, *sizes]).cumsum(0)[:-1]  # where each step begins, one after another
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
    """One level of several tensors that are put one after another."""
    lengths = torch.cat([part.diff() for part in parts])
    return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])


@op("shrink_rnn_memory", "X RankTable I", lod="function", infer=_open)
def shrink_memory(x: Tensor, table: Tensor, index: Tensor, *, lods: list[Any]) -> Held:
    """The first rows (or sequences), of those whose sequences go on at step I."""
    count = int((table[:, 1] > _number(index)).sum())
    return _items(x, torch.arange(count), lods[0]) if lods[0] else (x[:count], ())


@op("reorder_lod_tensor_by_rank", "X RankTable", lod="function", infer=_open)
def reorder_by_rank(x: Tensor, table: Tensor, *, lods: list[Any]) -> Held:
    """Rows or sequences in the order of the table."""
    return _items(x, table[:, 0], lods[0])


@op(
    "split_lod_tensor",
    "X Mask",
    "OutTrue OutFalse",
    lod="function",
    infer=lambda x, *_, **__: [(-1, *x[1:])] * 2,
)
def split_by_mask(x: Tensor, mask: Tensor, *, lods: list[Any]) -> tuple[tuple[Tensor, Tensor], Lod]:
    """Rows where mask [B, 1] holds, and the others."""
    if lods[0]:
        raise ValueError("rows with a LoD cannot be divided: pool the sequences first")
    chosen = mask.reshape(-1)
    return (x[chosen], x[~chosen]), ()


@op("merge_lod_tensor", "InTrue InFalse Mask", lod="none", infer=_open)
def merge_by_mask(true: Tensor, false: Tensor, mask: Tensor) -> Tensor:
    """Rows in the order they had before `split_lod_tensor`."""
    chosen = mask.reshape(-1)
    order = torch.argsort(torch.argsort((~chosen).long(), stable=True))
    return torch.cat([true, false])[order]
