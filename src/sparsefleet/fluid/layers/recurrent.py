"""Layers that walk along sequences."""

from __future__ import annotations

from typing import Any

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.layer_helper import LayerHelper, layer
from sparsefleet.fluid.ops.recurrent import ACTIVATIONS
from sparsefleet.fluid.param_attr import to_param_attr

__all__ = ["dynamic_gru", "gru_unit", "sequence_conv"]


def check_activations(helper: LayerHelper, *names: str) -> None:
    """ProgramError unless the layer knows them."""
    for name in names:
        if name not in ACTIVATIONS:
            raise helper.refuse(f"activations are {', '.join(ACTIVATIONS)}, got {name!r}")


@layer
def dynamic_gru(
    input: Variable,
    size: int,
    param_attr: Any = None,
    bias_attr: Any = None,
    is_reverse: bool = False,
    gate_activation: str = "sigmoid",
    candidate_activation: str = "tanh",
    h_0: Variable | None = None,
    origin_mode: bool = False,
) -> Variable:
    """A gated recurrent unit along each sequence: [N, size].

    input: [N, 3 * size], the inputs of update gate, reset gate and candidate, as fc gives them.
    origin_mode: the update gate says what is kept (Cho et al. 2014), not what is new.
    """
    helper = LayerHelper("gru")
    if helper.check_input(input).shape[-1] != 3 * size:
        raise helper.refuse(f"the last size of input must be 3 * size = {3 * size}, got {input}")
    check_activations(helper, gate_activation, candidate_activation)
    weight_attr, known_bias = to_param_attr(param_attr), to_param_attr(bias_attr)
    if weight_attr is None:
        raise helper.refuse("param_attr cannot be False")
    inputs: dict[str, Any] = {"Input": input, "H0": h_0}
    inputs["Weight"] = helper.create_parameter(weight_attr, [size, 3 * size], input.dtype)
    if known_bias is not None:
        inputs["Bias"] = helper.create_parameter(
            known_bias, [1, 3 * size], input.dtype, is_bias=True
        )
    attrs = {
        "is_reverse": is_reverse,
        "gate_activation": gate_activation,
        "activation": candidate_activation,
        "origin_mode": origin_mode,
    }
    out = helper.add("gru", inputs, attrs, slot="Hidden")
    out.dtype, out.lod_level = input.dtype, 1
    return out


@layer
def gru_unit(
    input: Variable,
    hidden: Variable,
    size: int,
    param_attr: Any = None,
    bias_attr: Any = None,
    activation: str = "tanh",
    gate_activation: str = "sigmoid",
    origin_mode: bool = False,
) -> tuple[Variable, Variable, Variable]:
    """One step of a gated recurrent unit, of width D = size / 3.

    input: [B, 3 D], as for `dynamic_gru`; hidden: [B, D].
    Gives the new state [B, D], the old one times the reset gate [B, D], and update gate, reset
    gate and candidate [B, 3 D].
    """
    helper = LayerHelper("gru_unit")
    if size % 3 or helper.check_input(input).shape[-1] != size:
        raise helper.refuse(
            f"size must be 3 * width and the last size of input, got {size}, {input}"
        )
    check_activations(helper, gate_activation, activation)
    weight_attr, known_bias = to_param_attr(param_attr), to_param_attr(bias_attr)
    if weight_attr is None:
        raise helper.refuse("param_attr cannot be False")
    inputs: dict[str, Any] = {"Input": input, "HiddenPrev": helper.check_input(hidden, "hidden")}
    inputs["Weight"] = helper.create_parameter(weight_attr, [size // 3, size], input.dtype)
    if known_bias is not None:
        inputs["Bias"] = helper.create_parameter(known_bias, [1, size], input.dtype, is_bias=True)
    gate, remembered, updated = (helper.new_variable(input.dtype) for _ in range(3))
    outputs = {"Hidden": updated, "ResetHiddenPrev": remembered, "Gate": gate}
    attrs = {
        "activation": activation,
        "gate_activation": gate_activation,
        "origin_mode": origin_mode,
    }
    helper.append_op("gru_unit", inputs, outputs, attrs)
    return updated, remembered, gate


@layer
def sequence_conv(
    input: Variable,
    num_filters: int,
    filter_size: int = 3,
    filter_stride: int = 1,
    padding: bool = True,
    padding_start: int | None = None,
    bias_attr: Any = None,
    param_attr: Any = None,
    act: str | None = None,
    name: str | None = None,
) -> Variable:
    """A convolution along each sequence, with zeros beyond its ends: [N, num_filters].

    padding_start: the first row of a window, counted from its own; in the middle by default.
    """
    helper = LayerHelper("sequence_conv", name)
    known = to_param_attr(param_attr)
    if filter_stride != 1 or not padding or known is None:
        raise helper.refuse("filter_stride must be 1, padding True, and param_attr not False")
    shape = [filter_size * helper.check_input(input).shape[1], num_filters]
    weight = helper.create_parameter(known, shape, input.dtype)
    start = -(filter_size // 2) if padding_start is None else padding_start
    attrs = {"context_start": start, "context_length": filter_size}
    out = helper.add("sequence_conv", {"X": input, "Filter": weight}, attrs)
    out.dtype, out.lod_level = input.dtype, 1
    return helper.activate(helper.add_bias(out, bias_attr, 1), act)
