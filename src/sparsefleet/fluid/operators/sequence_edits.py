"""Cut, reverse and search sequences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.framework.dtypes import dtype_name
from sparsefleet.fluid.framework.param_attr import to_param_attr
from sparsefleet.fluid.lowering.registry import Shape, op
from sparsefleet.fluid.operators.layer_helper import LayerHelper, layer
from sparsefleet.fluid.operators.pools import Span, span
from sparsefleet.fluid.operators.sequences import Lods, Made, level_of, offsets_of, segments

__all__ = [
    "add_position_encoding",
    "ctc_greedy_decoder",
    "im2sequence",
    "lod_append",
    "row_conv",
    "sequence_enumerate",
    "sequence_mask",
    "sequence_reverse",
    "sequence_scatter",
    "sequence_slice",
]

Tensor = torch.Tensor


def _same(x: Shape, *others: Any, **settings: Any) -> list[Shape]:
    del others, settings
    return [x]


def _open(x: Shape, *others: Any, **settings: Any) -> list[Shape]:
    del others, settings
    return [(-1, *x[1:])]


def _mask_shape(x: Shape, longest: Shape | None, **settings: Any) -> list[Shape]:
    del longest
    sizes = x[:-1] if len(x) > 1 and x[-1] == 1 and settings.get("drop_last") else x
    return [(*sizes, settings.get("maxlen", -1))]


@op("sequence_mask", "X MaxLenTensor?", "Y", lod="none", infer=_mask_shape)
def sequence_mask_op(
    x: Tensor, longest: Tensor | None, *, maxlen: int = -1, out_dtype: str = "int64"
) -> Tensor:
    """Return a mask that is 1 in the first x positions, then 0: [..., maxlen]."""
    size = int(longest) if longest is not None else maxlen
    if size < 0:
        size = int(x.max()) if x.numel() else 0
    return (torch.arange(size) < x.unsqueeze(-1)).to(getattr(torch, out_dtype))


@op("sequence_reverse", "X", "Y", lod="function", infer=_same)
def sequence_reverse_op(x: Tensor, *, lods: Lods) -> Made:
    offsets = level_of(lods[0], "X")
    which = segments(offsets)
    rows = offsets[:-1][which] + offsets[1:][which] - 1 - torch.arange(len(x))
    return x[rows], lods[0]


def _windows(x: Shape, **settings: Any) -> list[Shape]:
    return [(x[0], settings["win_size"])]


@op("sequence_enumerate", "X", lod="function", infer=_windows)
def sequence_enumerate_op(x: Tensor, *, lods: Lods, win_size: int, pad_value: int = 0) -> Made:
    """Return, for each id, a window of the id and its successors in the sequence: [N, win_size]."""
    offsets = level_of(lods[0], "X")
    places = torch.arange(len(x))[:, None] + torch.arange(win_size)
    inside = places < offsets[1:][segments(offsets)][:, None]
    ids = x.reshape(-1)[places.clamp(max=max(len(x) - 1, 0))]
    return torch.where(inside, ids, pad_value), lods[0]


@op("sequence_slice", "X Offset Length", lod="function", infer=_open)
def sequence_slice_op(x: Tensor, offset: Tensor, length: Tensor, *, lods: Lods) -> Made:
    """Return a part of each sequence, starting at that sequence's offset."""
    offsets = level_of(lods[0], "X")
    starts, sizes = offset.reshape(-1).long(), length.reshape(-1).long()
    if len(starts) != len(offsets) - 1 or len(sizes) != len(offsets) - 1:
        raise ValueError(
            f"got {len(offsets) - 1} sequences and {len(starts)} offsets, expected one per sequence"
        )
    if bool(((starts < 0) | (sizes < 0) | (starts + sizes > offsets.diff())).any()):
        raise ValueError(
            f"offset {starts.tolist()} and length {sizes.tolist()} exceed sequences of length "
            f"{offsets.diff().tolist()}"
        )
    made = offsets_of(sizes)
    begin = torch.repeat_interleave(offsets[:-1] + starts - made[:-1], sizes)
    return x[begin + torch.arange(int(made[-1]))], (made,)


@op("sequence_scatter", "X Ids Updates", lod="function", infer=_same)
def sequence_scatter_op(x: Tensor, ids: Tensor, updates: Tensor, *, lods: Lods) -> Made:
    """Add sequence i of the updates to row i of x, at the columns in ids."""
    rows = segments(level_of(lods[1], "Ids"))
    columns = ids.reshape(-1).long()
    return x.index_put((rows, columns), updates.reshape(-1), accumulate=True), ()


@op("row_conv", "X Filter", lod="function", infer=_same)
def row_conv_op(x: Tensor, weight: Tensor, *, lods: Lods) -> Made:
    """Return weighted sums of each row and its successors in the sequence; weights [K, D]."""
    if x.dim() == 3:  # sequences of equal length
        padded = torch.nn.functional.pad(x, [0, 0, 0, len(weight) - 1])
        total = sum(padded[:, shift : shift + x.shape[1]] * row for shift, row in enumerate(weight))
        return total, ()
    offsets = level_of(lods[0], "X")
    ends = offsets[1:][segments(offsets)]
    rows = torch.arange(len(x))
    total = torch.zeros_like(x)
    for shift, row in enumerate(weight):
        places = rows + shift
        inside = (places < ends)[:, None]
        total = total + x[places.clamp(max=max(len(x) - 1, 0))] * row * inside
    return total, lods[0]


@op("lod_append", "X Y?", lod="function", infer=_open)
def lod_append_op(
    x: Tensor, y: Tensor | None, *, lods: Lods, level: list[int] | None = None
) -> Made:
    """Add a LoD level below the lowest level, given by `level` or y."""
    if y is None:
        return x, (*lods[0], torch.tensor(level, dtype=torch.int64))
    return x, (*lods[0], *(lods[1] or (y.reshape(-1).long(),)))


@op("add_position_encoding", "X", lod="function", infer=_same)
def add_position_encoding_op(x: Tensor, *, lods: Lods, alpha: float, beta: float) -> Made:
    """Return x * alpha + beta * (sines and cosines of row positions) (Vaswani et al., 2017)."""
    half = x.shape[-1] // 2
    if x.dim() == 2:
        offsets = level_of(lods[0], "X")
        places = torch.arange(len(x)) - offsets[:-1][segments(offsets)]
    else:
        places = torch.arange(x.shape[1])
    powers = torch.arange(half) / (half - 1) if half > 1 else torch.ones(half)
    angles = places[:, None] / torch.pow(torch.tensor(10000.0), powers)
    waves = torch.cat([torch.sin(angles), torch.cos(angles)], -1).to(x.dtype)
    return x * alpha + waves * beta, lods[0]


def _im2sequence_shape(x: Shape, sizes: Any, **settings: Any) -> list[Shape]:
    del sizes
    height, width = settings["kernels"]
    return [(-1, x[1] * height * width)]


@op("im2sequence", "X Y?", lod="function", infer=_im2sequence_shape)
def im2sequence_op(
    x: Tensor,
    sizes: Tensor | None,
    *,
    lods: Lods,
    kernels: list[int],
    strides: list[int],
    paddings: list[int],
    out_stride: Sequence[int] = (1, 1),
) -> Made:
    """Return each image's windows as one sequence. paddings: top, left, bottom, right.

    sizes: each image's original height and width; out_stride of its pixels correspond to one pixel
        of the input. Only windows within that size are returned.
    """
    del lods
    above, left, below, right = paddings
    padded = torch.nn.functional.pad(x, [left, right, above, below])
    columns = torch.nn.functional.unfold(padded, tuple(kernels), stride=tuple(strides))
    if sizes is None:
        rows = columns.transpose(1, 2).reshape(-1, columns.shape[1])
        return rows, (torch.arange(len(x) + 1) * columns.shape[2],)
    wide = (padded.shape[3] - kernels[1]) // strides[1] + 1
    windows = columns.transpose(1, 2).reshape(len(x), -1, wide, columns.shape[1])
    made = []
    for picture, size in zip(windows, sizes.reshape(len(x), -1).tolist(), strict=True):
        height, width = (math.ceil(size[n] / out_stride[n]) for n in (0, 1))
        high = (height + above + below - kernels[0]) // strides[0] + 1
        across = (width + left + right - kernels[1]) // strides[1] + 1
        made.append(picture[:high, :across].reshape(-1, windows.shape[-1]))
    lengths = torch.tensor([len(rows) for rows in made])
    return torch.cat(made), (offsets_of(lengths),)


def _column(x: Shape, **settings: Any) -> list[Shape]:
    del x, settings
    return [(-1, 1)]


def _greedy_shape(x: Shape, length: Shape, **settings: Any) -> list[Shape]:
    del length, settings
    return [x[:2], (x[0], 1)]


@op("ctc_greedy", "X", lod="function", infer=_column)
def ctc_greedy(x: Tensor, *, lods: Lods, blank: int) -> Made:
    """Return each sequence's best classes, without repeats and blanks, or -1 if all are blank."""
    offsets = level_of(lods[0], "X")
    best = torch.split_with_sizes(x.argmax(1), offsets.diff().tolist())
    kept = [_without_repeats(part, blank) for part in best]
    lengths = torch.tensor([len(part) for part in kept])
    if not int(lengths.sum()):
        return torch.full((1, 1), -1), (offsets_of(lengths),)
    return torch.cat(kept)[:, None], (offsets_of(lengths),)


@op("ctc_greedy_padded", "X Length", "Out OutLength", lod="none", infer=_greedy_shape)
def ctc_greedy_padded(
    x: Tensor, length: Tensor, *, blank: int, padding_value: int = 0
) -> list[Tensor]:
    """Decode [B, T, C] like `ctc_greedy`; return padded labels [B, T] and lengths [B, 1]."""
    best, sizes = x.argmax(2), length.reshape(-1).tolist()
    kept = [_without_repeats(row[:size], blank) for row, size in zip(best, sizes, strict=True)]
    out = torch.full_like(best, padding_value)
    for row, part in zip(out, kept, strict=True):
        row[: len(part)] = part
    return [out, torch.tensor([[len(part)] for part in kept])]


def _without_repeats(best: Tensor, blank: int) -> Tensor:
    once = torch.unique_consecutive(best)
    kept: Tensor = once[once != blank]
    return kept


def _like(
    helper: LayerHelper,
    type: str,
    inputs: dict[str, Any],
    attrs: dict[str, Any] | None = None,
    slot: str = "Out",
) -> Variable:
    """Add an operator whose output has the dtype and LoD levels of its input X."""
    x = inputs["X"]
    out = helper.add(type, inputs, attrs, slot=slot, dtype=x.dtype)
    out.lod_level = x.lod_level
    return out


@layer
def sequence_mask(
    x: Variable,
    maxlen: int | Variable | None = None,
    dtype: Any = "int64",
    name: str | None = None,
) -> Variable:
    """Return a mask that is 1 in the first x positions, then 0: [..., maxlen or the longest]."""
    helper = LayerHelper("sequence_mask", name)
    inputs: dict[str, Any] = {"X": helper.check_input(x, "x")}
    attrs: dict[str, Any] = {"out_dtype": dtype_name(dtype)}
    if isinstance(maxlen, Variable):
        inputs["MaxLenTensor"] = maxlen
    else:
        attrs["maxlen"] = -1 if maxlen is None else int(maxlen)
    return helper.add(
        "sequence_mask", inputs, attrs, slot="Y", dtype=dtype_name(dtype), stop_gradient=True
    )


@layer
def sequence_reverse(x: Variable, name: str | None = None) -> Variable:
    """Reverse each sequence."""
    helper = LayerHelper("sequence_reverse", name)
    return _like(helper, "sequence_reverse", {"X": helper.check_input(x, "x")}, slot="Y")


@layer
def sequence_enumerate(
    input: Variable, win_size: int, pad_value: int = 0, name: str | None = None
) -> Variable:
    """Return, for each id, a window of it and its successors, padded with pad_value: [N,
    win_size].
    """
    helper = LayerHelper("sequence_enumerate", name)
    attrs = {"win_size": win_size, "pad_value": pad_value}
    out = _like(helper, "sequence_enumerate", {"X": helper.check_input(input)}, attrs)
    out.stop_gradient = True
    return out


@layer
def sequence_slice(
    input: Variable, offset: Variable, length: Variable, name: str | None = None
) -> Variable:
    """Return a part of each sequence, given its offset and length: int64[B, 1] each."""
    helper = LayerHelper("sequence_slice", name)
    inputs = {
        "X": helper.check_input(input),
        "Offset": helper.check_input(offset, "offset"),
        "Length": helper.check_input(length, "length"),
    }
    return _like(helper, "sequence_slice", inputs)


@layer
def sequence_scatter(
    input: Variable, index: Variable, updates: Variable, name: str | None = None
) -> Variable:
    """Add sequence i of the updates to row i of input [B, D], at the columns in index."""
    helper = LayerHelper("sequence_scatter", name)
    inputs = {
        "X": helper.check_input(input),
        "Ids": helper.check_input(index, "index"),
        "Updates": helper.check_input(updates, "updates"),
    }
    return _like(helper, "sequence_scatter", inputs)


@layer
def row_conv(
    input: Variable, future_context_size: int, param_attr: Any = None, act: str | None = None
) -> Variable:
    """Return weighted sums of each row and its successors in the sequence (Deep Speech 2)."""
    helper = LayerHelper("row_conv")
    known = to_param_attr(param_attr)
    if known is None:
        raise helper.refuse("param_attr cannot be False")
    shape = [future_context_size + 1, helper.check_input(input).shape[-1]]
    weight = helper.create_parameter(known, shape, input.dtype)
    return helper.activate(_like(helper, "row_conv", {"X": input, "Filter": weight}), act)


@layer
def lod_append(x: Variable, level: Variable | Sequence[int]) -> Variable:
    """Add a LoD level, given as offsets or as a variable."""
    helper = LayerHelper("lod_append")
    inputs: dict[str, Any] = {"X": helper.check_input(x, "x")}
    attrs: dict[str, Any] = {}
    if isinstance(level, Variable):
        inputs["Y"] = level
    else:
        attrs["level"] = list(level)
    out = _like(helper, "lod_append", inputs, attrs)
    out.lod_level = x.lod_level + 1
    return out


@layer
def add_position_encoding(
    input: Variable, alpha: float, beta: float, name: str | None = None
) -> Variable:
    """Return input * alpha + beta * (position encoding): sequences [N, D], or [B, T, D]."""
    helper = LayerHelper("add_position_encoding", name)
    attrs = {"alpha": float(alpha), "beta": float(beta)}
    return _like(helper, "add_position_encoding", {"X": helper.check_input(input)}, attrs)


@layer
def im2sequence(
    input: Variable,
    filter_size: Span = 1,
    stride: Span = 1,
    padding: Span = 0,
    input_image_size: Variable | None = None,
    out_stride: Span = 1,
    name: str | None = None,
) -> Variable:
    """Return each image's windows as a sequence of rows, from images [N, C, H, W]."""
    helper = LayerHelper("im2sequence", name)
    sides = [padding] * 4 if isinstance(padding, int) else list(padding)
    sides = sides * 2 if len(sides) == 2 else sides
    attrs = {
        "kernels": span(helper, filter_size, 2, "filter_size"),
        "strides": span(helper, stride, 2, "stride"),
        "paddings": sides,
    }
    inputs = {"X": helper.check_input(input)}
    if input_image_size is not None:
        inputs["Y"] = helper.check_input(input_image_size, "input_image_size")
        attrs["out_stride"] = span(helper, out_stride, 2, "out_stride")
    out = _like(helper, "im2sequence", inputs, attrs)
    out.lod_level = 1
    return out


@layer
def ctc_greedy_decoder(
    input: Variable,
    blank: int,
    input_length: Variable | None = None,
    padding_value: int = 0,
    name: str | None = None,
) -> Variable | tuple[Variable, Variable]:
    """Return the best class of each step, without repeats and blanks.

    input: sequences [N, C] -> sequences int64[M, 1]; or [B, T, C] with input_length [B, 1] ->
        int64[B, T] and lengths [B, 1].
    """
    helper = LayerHelper("ctc_greedy_decoder", name)
    attrs = {"blank": blank}
    x = helper.check_input(input)
    if input_length is None:
        out = helper.add("ctc_greedy", {"X": x}, attrs, dtype="int64", stop_gradient=True)
        out.lod_level = 1
        return out
    out = helper.new_variable("int64", stop_gradient=True)
    lengths = helper.new_variable("int64", stop_gradient=True)
    helper.append_op(
        "ctc_greedy_padded",
        {"X": x, "Length": input_length},
        {"Out": out, "OutLength": lengths},
        {**attrs, "padding_value": padding_value},
    )
    return out, lengths
