"""Layers that walk along sequences."""

from __future__ import annotations

from typing import Any

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.layer_helper import LayerHelper, layer
from sparsefleet.fluid.param_attr import to_param_attr

__all__ = ["dynamic_gru"]


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
