"""Layers over sequences, which are variables whose rows are divided by a LoD."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.lowering.lowered import Lod
from sparsefleet.fluid.lowering.registry import op
from sparsefleet.fluid.operators.layer_helper import LayerHelper, layer

__all__ = [
    "lod_reset",
    "sequence_concat",
    "sequence_expand",
    "sequence_expand_as",
    "sequence_first_step",
    "sequence_last_step",
    "sequence_pad",
    "sequence_pool",
    "sequence_reshape",
    "sequence_softmax",
    "sequence_unpad",
]

Tensor = torch.Tensor
Lods = list[Any]
Made = tuple[Any, Lod]


def level_of(lod: Lod, what: str, level: int = -1) -> Tensor:
    """Return the offsets of a level, int64[B + 1]. Raises ValueError if there are no sequences."""
    if not lod:
        raise ValueError(f"input {what} has no LoD; feed a LoDTensor (fluid.create_lod_tensor)")
    return lod[level]


def segments(offsets: Tensor) -> Tensor:
    """Return the index of the sequence that each row is in: int64[N].

    >>> segments(torch.tensor([0, 2, 2, 3]))
    tensor([0, 0, 2])
    """
    return torch.repeat_interleave(torch.arange(len(offsets) - 1), offsets.diff())


def _open(shape: tuple[int, ...], *others: Any, **settings: Any) -> list[tuple[int, ...]]:
    del others, settings
    return [(-1, *shape[1:])]


@op("sequence_pool", "X", lod="function", infer=_open)
def sequence_pool_op(
    x: Tensor, *, lods: Lods, pooltype: str = "SUM", pad_value: float = 0.0
) -> Made:
    """Pool each sequence to one row, with `pad_value` for an empty sequence."""
    offsets = level_of(lods[0], "X")
    lengths = offsets.diff()
    shape = (len(lengths), *x.shape[1:])
    column = lengths.reshape(-1, *[1] * (x.dim() - 1))
    if pooltype in ("FIRST", "LAST"):
        rows = offsets[:-1] if pooltype == "FIRST" else offsets[1:] - 1
        pooled = x[rows.clamp(0, max(len(x) - 1, 0))] if len(x) else x.new_zeros(shape)
    elif pooltype == "MAX":
        index = segments(offsets).reshape(-1, *[1] * (x.dim() - 1)).expand_as(x)
        pooled = x.new_zeros(shape).scatter_reduce(0, index, x, "amax", include_self=False)
    elif bool((lengths == 1).all()):
        return x, tuple(lods[0][:-1])  # true for every kind of pooling
    else:
        pooled = x.new_zeros(shape).index_add(0, segments(offsets), x)
        divisor = column.clamp(min=1).to(x.dtype)
        if pooltype == "AVERAGE":
            pooled = pooled / divisor
        elif pooltype == "SQRT":
            pooled = pooled / divisor.sqrt()
    if bool((lengths == 0).any()):
        pooled = torch.where(column == 0, torch.full_like(pooled, pad_value), pooled)
    return pooled, tuple(lods[0][:-1])


@op("sequence_softmax", "X", lod="function", infer=_open)
def sequence_softmax_op(x: Tensor, *, lods: Lods) -> Made:
    """Apply softmax within each sequence of single values [N] or [N, 1]."""
    offsets = level_of(lods[0], "X")
    index, flat = segments(offsets), x.reshape(-1)
    top = flat.new_zeros(len(offsets) - 1).scatter_reduce(
        0, index, flat.detach(), "amax", include_self=False
    )
    powers = torch.exp(flat - top[index])
    sums = powers.new_zeros(len(offsets) - 1).index_add(0, index, powers)
    return (powers / sums[index]).reshape(x.shape), lods[0]


def _repeat(x: Tensor, x_offsets: Tensor, times: Tensor) -> tuple[Tensor, Tensor]:
    """Repeat each sequence in x; return the rows and the new lengths."""
    lengths = torch.repeat_interleave(x_offsets.diff(), times)
    starts = torch.repeat_interleave(x_offsets[:-1], times)
    ends = torch.cumsum(lengths, 0)
    inside = torch.arange(int(lengths.sum())) - torch.repeat_interleave(ends - lengths, lengths)
    return x[torch.repeat_interleave(starts, lengths) + inside], lengths


def offsets_of(lengths: Tensor) -> Tensor:
    return torch.cat([lengths.new_zeros(1), torch.cumsum(lengths, 0)])


@op("sequence_expand", "X Y", lod="function", infer=_open)
def sequence_expand_op(x: Tensor, y: Tensor, *, lods: Lods, ref_level: int = -1) -> Made:
    """Repeat row (or sequence) i of x once for each row in y's sequence i."""
    del y
    times = level_of(lods[1], "Y", ref_level).diff()
    x_offsets = lods[0][0] if lods[0] else torch.arange(len(x) + 1)
    if len(times) != len(x_offsets) - 1:
        raise ValueError(
            f"X has {len(x_offsets) - 1} sequences and Y has {len(times)}, expected the same number"
        )
    rows, lengths = _repeat(x, x_offsets, times)
    return rows, (offsets_of(lengths),) if lods[0] else ()


@op("sequence_expand_as", "X Y", lod="function", infer=_open)
def sequence_expand_as_op(x: Tensor, y: Tensor, *, lods: Lods) -> Made:
    """Repeat row i of x once for each row of y's sequence i."""
    del y
    offsets = level_of(lods[1], "Y", 0)
    if len(offsets) - 1 != len(x):
        raise ValueError(
            f"X has {len(x)} rows and Y has {len(offsets) - 1} sequences, expected one row per "
            "sequence"
        )
    return x[segments(offsets)], (offsets,)


def _reshaped(shape: tuple[int, ...], *, new_dim: int) -> list[tuple[int, ...]]:
    del shape
    return [(-1, new_dim)]


@op("sequence_reshape", "X", lod="function", infer=_reshaped)
def sequence_reshape_op(x: Tensor, *, lods: Lods, new_dim: int) -> Made:
    """Reshape each sequence's values to rows of a different width."""
    values = level_of(lods[0], "X") * x.shape[1]
    if bool((values % new_dim).any()):
        raise ValueError(f"a sequence's values cannot be divided into rows of width {new_dim}")
    return x.reshape(-1, new_dim), (values // new_dim,)


@op("sequence_concat", "X*", lod="function", infer=lambda shapes: [(-1, *shapes[0][1:])])
def sequence_concat_op(tensors: list[Tensor], *, lods: Lods) -> Made:
    """Concatenate sequences across inputs: sequence i of the result is sequence i of each input in
    turn.
    """
    levels = [level_of(lod, "X") for lod in lods[0]]
    parts = [
        tensor[int(offsets[i]) : int(offsets[i + 1])]
        for i in range(len(levels[0]) - 1)
        for tensor, offsets in zip(tensors, levels, strict=True)
    ]
    return torch.cat(parts), (torch.stack(levels).sum(0),)


def _padded(shape: tuple[int, ...], *others: Any, padded_length: int = -1) -> list[tuple[int, ...]]:
    del others
    return [(-1, padded_length, *shape[1:]), (-1,)]


@op("sequence_pad", "X PadValue", "Out Length", lod="function", infer=_padded)
def sequence_pad_op(x: Tensor, pad_value: Tensor, *, lods: Lods, padded_length: int = -1) -> Made:
    """Pad sequences to the same length: [B, length, ...]; also return their lengths: int64[B]."""
    offsets = level_of(lods[0], "X")
    lengths = offsets.diff()
    longest = int(lengths.max()) if len(lengths) else 0
    size = longest if padded_length < 0 else padded_length
    if longest > size:
        raise ValueError(f"maxlen is {size}, but a sequence has {longest} rows")
    out = pad_value.detach().to(x.dtype).expand(len(lengths), size, *x.shape[1:]).clone()
    inside = torch.arange(len(x)) - torch.repeat_interleave(offsets[:-1], lengths)
    return [out.index_put((segments(offsets), inside), x), lengths], ()


def _unpadded(shape: tuple[int, ...], *others: Any) -> list[tuple[int, ...]]:
    del others
    return [(-1, *shape[2:])]


@op("sequence_unpad", "X Length", lod="function", infer=_unpadded)
def sequence_unpad_op(x: Tensor, length: Tensor, *, lods: Lods) -> Made:
    """Return the first `length` int64[B] rows of each example as sequences."""
    del lods
    lengths = length.reshape(-1).long()
    return x[torch.arange(x.shape[1]) < lengths[:, None]], (offsets_of(lengths),)


@op("lod_reset", "X Y?", lod="function", infer=_open)
def lod_reset_op(
    x: Tensor, y: Tensor | None, *, lods: Lods, target_lod: list[int] | None = None
) -> Made:
    """Regroup the rows into the sequences of y, or by the offsets in y or in `target_lod`."""
    if y is None:
        return x, (torch.tensor(target_lod, dtype=torch.int64),)
    return x, lods[1] or (y.reshape(-1).long(),)


def _convolved(
    shape: tuple[int, ...], weight: tuple[int, ...], **settings: Any
) -> list[tuple[int, ...]]:
    del shape, settings
    return [(-1, weight[1])]


@op("sequence_conv", "X Filter", lod="function", infer=_convolved)
def sequence_conv(
    x: Tensor, weight: Tensor, *, lods: Lods, context_start: int, context_length: int
) -> Made:
    """Multiply windows of rows in each sequence, zero-padded at the ends, by the filter."""
    offsets = level_of(lods[0], "X")
    which, rows = segments(offsets), torch.arange(len(x))
    begin, end = offsets[:-1][which], offsets[1:][which]
    parts = []
    for shift in range(context_start, context_start + context_length):
        places = rows + shift
        inside = (places >= begin) & (places < end)
        parts.append(x[places.clamp(0, max(len(x) - 1, 0))] * inside[:, None])
    return torch.cat(parts, 1) @ weight, lods[0]


_POOLS = ("average", "first", "last", "max", "sqrt", "sum")


@layer
def sequence_pool(
    input: Variable, pool_type: str, is_test: bool = False, pad_value: float = 0.0
) -> Variable:
    """Pool each sequence to one row by sum, average, sqrt (sum / root of length), max, first or
    last.
    """
    del is_test
    helper = LayerHelper("sequence_pool")
    kind = str(pool_type).lower()
    if kind not in _POOLS:
        raise helper.refuse(f"pool_type must be one of {', '.join(_POOLS)}, got {pool_type!r}")
    attrs = {"pooltype": kind.upper(), "pad_value": float(pad_value)}
    out = helper.add("sequence_pool", {"X": helper.check_input(input)}, attrs)
    out.lod_level = max(input.lod_level - 1, 0)
    out.dtype = input.dtype
    return out


def sequence_first_step(input: Variable) -> Variable:
    """Return the first row of each sequence."""
    return sequence_pool(input, "first")


def sequence_last_step(input: Variable) -> Variable:
    """Return the last row of each sequence."""
    return sequence_pool(input, "last")


def _like(helper: LayerHelper, type: str, inputs: dict[str, Variable], **attrs: int) -> Variable:
    """Add an operator whose output has the dtype of its input X and one LoD level."""
    out = helper.add(type, inputs, attrs)
    out.dtype, out.lod_level = inputs["X"].dtype, 1
    return out


@layer
def sequence_softmax(input: Variable, use_cudnn: bool = False, name: str | None = None) -> Variable:
    """Apply softmax within each sequence."""
    del use_cudnn
    helper = LayerHelper("sequence_softmax", name)
    return _like(helper, "sequence_softmax", {"X": helper.check_input(input)})


@layer
def sequence_expand(
    x: Variable, y: Variable, ref_level: int = -1, name: str | None = None
) -> Variable:
    """Repeat row (or sequence) i of x once for each row in y's sequence i."""
    helper = LayerHelper("sequence_expand", name)
    inputs = {"X": helper.check_input(x, "x"), "Y": helper.check_input(y, "y")}
    return _like(helper, "sequence_expand", inputs, ref_level=ref_level)


@layer
def sequence_expand_as(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """Repeat row i of x once for each row of y's sequence i."""
    helper = LayerHelper("sequence_expand_as", name)
    inputs = {"X": helper.check_input(x, "x"), "Y": helper.check_input(y, "y")}
    return _like(helper, "sequence_expand_as", inputs)


@layer
def sequence_reshape(input: Variable, new_dim: int) -> Variable:
    """Reshape each sequence's values to rows of a different width."""
    helper = LayerHelper("sequence_reshape")
    return _like(helper, "sequence_reshape", {"X": helper.check_input(input)}, new_dim=new_dim)


@layer
def sequence_concat(input: Sequence[Variable], name: str | None = None) -> Variable:
    """Concatenate sequences across inputs: sequence i of the result is sequence i of each input in
    turn.
    """
    helper = LayerHelper("sequence_concat", name)
    out = helper.add("sequence_concat", {"X": list(input)})
    out.dtype, out.lod_level = input[0].dtype, 1
    return out


@layer
def sequence_pad(
    x: Variable, pad_value: Variable, maxlen: int | None = None, name: str | None = None
) -> tuple[Variable, Variable]:
    """Pad sequences to the same length, [B, length, ...]; also return their lengths: int64[B]."""
    helper = LayerHelper("sequence_pad", name)
    out = helper.new_variable(helper.check_input(x, "x").dtype)
    length = helper.new_variable("int64", stop_gradient=True)
    attrs = {"padded_length": -1 if maxlen is None else maxlen}
    inputs = {"X": x, "PadValue": helper.check_input(pad_value, "pad_value")}
    helper.append_op("sequence_pad", inputs, {"Out": out, "Length": length}, attrs)
    return out, length


@layer
def sequence_unpad(x: Variable, length: Variable, name: str | None = None) -> Variable:
    """Return the first `length` rows of each example as sequences."""
    helper = LayerHelper("sequence_unpad", name)
    return _like(helper, "sequence_unpad", {"X": helper.check_input(x, "x"), "Length": length})


@layer
def lod_reset(
    x: Variable, y: Variable | None = None, target_lod: Sequence[int] | None = None
) -> Variable:
    """Regroup the rows into the sequences of y, or by the offsets in y or in target_lod."""
    helper = LayerHelper("lod_reset")
    if y is None and target_lod is None:
        raise helper.refuse("y or target_lod must be given")
    attrs = {"target_lod": None if target_lod is None else list(target_lod)}
    out = helper.add("lod_reset", {"X": helper.check_input(x, "x"), "Y": y}, attrs)
    out.dtype = x.dtype
    out.lod_level = 1 if y is None else max(1, y.lod_level)
    return out
