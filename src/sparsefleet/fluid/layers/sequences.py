"""Layers over sequences: variables whose rows are cut by a LoD."""

from __future__ import annotations

from collections.abc import Sequence

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.layer_helper import LayerHelper, layer

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

_POOLS = ("average", "first", "last", "max", "sqrt", "sum")


@layer
def sequence_pool(
    input: Variable, pool_type: str, is_test: bool = False, pad_value: float = 0.0
) -> Variable:
    """One row for each sequence: sum, average, sqrt (sum / root of length), max, first or last."""
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
    """The first row of each sequence."""
    return sequence_pool(input, "first")


def sequence_last_step(input: Variable) -> Variable:
    """The last row of each sequence."""
    return sequence_pool(input, "last")


def _like(helper: LayerHelper, type: str, inputs: dict[str, Variable], **attrs: int) -> Variable:
    """An operator whose output is as its input X, with sequences of one level."""
    out = helper.add(type, inputs, attrs)
    out.dtype, out.lod_level = inputs["X"].dtype, 1
    return out


@layer
def sequence_softmax(input: Variable, use_cudnn: bool = False, name: str | None = None) -> Variable:
    """softmax within each sequence."""
    del use_cudnn
    helper = LayerHelper("sequence_softmax", name)
    return _like(helper, "sequence_softmax", {"X": helper.check_input(input)})


@layer
def sequence_expand(
    x: Variable, y: Variable, ref_level: int = -1, name: str | None = None
) -> Variable:
    """Each row, or sequence, of x as often as y's sequence of that number is long."""
    helper = LayerHelper("sequence_expand", name)
    inputs = {"X": helper.check_input(x, "x"), "Y": helper.check_input(y, "y")}
    return _like(helper, "sequence_expand", inputs, ref_level=ref_level)


@layer
def sequence_expand_as(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """Row i of x for each row of y's sequence i."""
    helper = LayerHelper("sequence_expand_as", name)
    inputs = {"X": helper.check_input(x, "x"), "Y": helper.check_input(y, "y")}
    return _like(helper, "sequence_expand_as", inputs)


@layer
def sequence_reshape(input: Variable, new_dim: int) -> Variable:
    """The values of each sequence in rows of another width."""
    helper = LayerHelper("sequence_reshape")
    return _like(helper, "sequence_reshape", {"X": helper.check_input(input)}, new_dim=new_dim)


@layer
def sequence_concat(input: Sequence[Variable], name: str | None = None) -> Variable:
    """Sequence i of the first, then of the second, and so on, as one."""
    helper = LayerHelper("sequence_concat", name)
    out = helper.add("sequence_concat", {"X": list(input)})
    out.dtype, out.lod_level = input[0].dtype, 1
    return out


@layer
def sequence_pad(
    x: Variable, pad_value: Variable, maxlen: int | None = None, name: str | None = None
) -> tuple[Variable, Variable]:
    """Sequences of one length, [B, length, ...], and the lengths they had: int64[B]."""
    helper = LayerHelper("sequence_pad", name)
    out = helper.new_variable(helper.check_input(x, "x").dtype)
    length = helper.new_variable("int64", stop_gradient=True)
    attrs = {"padded_length": -1 if maxlen is None else maxlen}
    inputs = {"X": x, "PadValue": helper.check_input(pad_value, "pad_value")}
    helper.append_op("sequence_pad", inputs, {"Out": out, "Length": length}, attrs)
    return out, length


@layer
def sequence_unpad(x: Variable, length: Variable, name: str | None = None) -> Variable:
    """The first rows of each, so many as `length` says, as sequences."""
    helper = LayerHelper("sequence_unpad", name)
    return _like(helper, "sequence_unpad", {"X": helper.check_input(x, "x"), "Length": length})


@layer
def lod_reset(
    x: Variable, y: Variable | None = None, target_lod: Sequence[int] | None = None
) -> Variable:
    """The same rows in other sequences: those of y, or at the offsets in it or in target_lod."""
    helper = LayerHelper("lod_reset")
    if y is None and target_lod is None:
        raise helper.refuse("y or target_lod must be given")
    attrs = {"target_lod": None if target_lod is None else list(target_lod)}
    out = helper.add("lod_reset", {"X": helper.check_input(x, "x"), "Y": y}, attrs)
    out.dtype, out.lod_level = x.dtype, 1
    return out
