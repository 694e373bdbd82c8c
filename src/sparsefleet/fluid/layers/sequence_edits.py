"""Sequences cut, turned and searched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparsefleet.fluid.dtypes import dtype_name
from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.layer_helper import LayerHelper, layer
from sparsefleet.fluid.layers.windows import Span, span
from sparsefleet.fluid.param_attr import to_param_attr

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


def _like(
    helper: LayerHelper,
    type: str,
    inputs: dict[str, Any],
    attrs: dict[str, Any] | None = None,
    slot: str = "Out",
) -> Variable:
    """An operator whose output has the type and levels of its input X."""
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
    """1 in the first places, as many as x says, then 0: [..., maxlen], or of the longest."""
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
    """Each sequence backwards."""
    helper = LayerHelper("sequence_reverse", name)
    return _like(helper, "sequence_reverse", {"X": helper.check_input(x, "x")}, slot="Y")


@layer
def sequence_enumerate(
    input: Variable, win_size: int, pad_value: int = 0, name: str | None = None
) -> Variable:
    """Each id with those after it in its sequence: [N, win_size]; pad_value beyond the end."""
    helper = LayerHelper("sequence_enumerate", name)
    attrs = {"win_size": win_size, "pad_value": pad_value}
    out = _like(helper, "sequence_enumerate", {"X": helper.check_input(input)}, attrs)
    out.stop_gradient = True
    return out


@layer
def sequence_slice(
    input: Variable, offset: Variable, length: Variable, name: str | None = None
) -> Variable:
    """A part of each sequence: offset and length int64[B, 1]."""
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
    """input [B, D] with sequence i of updates added to row i, at the columns of index."""
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
    """Each row and the next ones of its sequence, each with own weights (Deep Speech 2)."""
    helper = LayerHelper("row_conv")
    known = to_param_attr(param_attr)
    if known is None:
        raise helper.refuse("param_attr cannot be False")
    shape = [future_context_size + 1, helper.check_input(input).shape[-1]]
    weight = helper.create_parameter(known, shape, input.dtype)
    return helper.activate(_like(helper, "row_conv", {"X": input, "Filter": weight}), act)


@layer
def lod_append(x: Variable, level: Variable | Sequence[int]) -> Variable:
    """The same rows with one more level of sequences: offsets, or those of a variable."""
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
    """input * alpha + beta * waves by place: sequences [N, D], or [B, T, D]."""
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
    """The windows of each picture [N, C, H, W] as a sequence of rows."""
    helper = LayerHelper("im2sequence", name)
    if input_image_size is not None:
        raise helper.refuse("input_image_size is not supported: cut the pictures before")
    del out_stride  # of input_image_size
    sides = [padding] * 4 if isinstance(padding, int) else list(padding)
    sides = sides * 2 if len(sides) == 2 else sides
    attrs = {
        "kernels": span(helper, filter_size, 2, "filter_size"),
        "strides": span(helper, stride, 2, "stride"),
        "paddings": sides,
    }
    out = _like(helper, "im2sequence", {"X": helper.check_input(input)}, attrs)
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
    """The best class of each step, without repetitions and blanks.

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
