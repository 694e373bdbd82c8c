"""Long short-term memory. Letters: N rows of sequences, B batch, T steps, D width."""

from __future__ import annotations

from math import prod
from typing import Any

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.initializer import Initializer
from sparsefleet.fluid.layer_helper import LayerHelper, layer
from sparsefleet.fluid.layers.products import fc
from sparsefleet.fluid.layers.recurrent import check_activations
from sparsefleet.fluid.layers.shaping import concat
from sparsefleet.fluid.ops.lstm import layer_shapes
from sparsefleet.fluid.param_attr import ParamAttr, to_param_attr

__all__ = ["dynamic_lstm", "dynamic_lstmp", "lstm", "lstm_unit"]


def _attrs(helper: LayerHelper, param_attr: Any, bias_attr: Any) -> tuple[ParamAttr, ParamAttr]:
    weight, bias = to_param_attr(param_attr), to_param_attr(bias_attr)
    if weight is None or bias is None:
        raise helper.refuse("param_attr and bias_attr cannot be False")
    return weight, bias


def _check_width(helper: LayerHelper, input: Variable, size: int) -> int:
    if size % 4 or helper.check_input(input).shape[-1] != size:
        raise helper.refuse(
            f"size must be 4 * width and the last size of input, got {size}, {input}"
        )
    return size // 4


@layer
def dynamic_lstm(
    input: Variable,
    size: int,
    h_0: Variable | None = None,
    c_0: Variable | None = None,
    param_attr: Any = None,
    bias_attr: Any = None,
    use_peepholes: bool = True,
    is_reverse: bool = False,
    gate_activation: str = "sigmoid",
    cell_activation: str = "tanh",
    candidate_activation: str = "tanh",
    dtype: Any = "float32",
    name: str | None = None,
) -> tuple[Variable, Variable]:
    """States and cells along each sequence: [N, D] each, D = size / 4.

    input: [N, 4 D], the inputs of candidate, input, forget and output gate, as fc gives them.
    use_peepholes: the gates see the cell; the bias is [1, 7 D] then, else [1, 4 D].
    """
    helper = LayerHelper("lstm", name)
    width = _check_width(helper, input, size)
    check_activations(helper, gate_activation, cell_activation, candidate_activation)
    if (h_0 is None) != (c_0 is None):
        raise helper.refuse("h_0 and c_0 are given together")
    weight, bias = _attrs(helper, param_attr, bias_attr)
    inputs: dict[str, Any] = {
        "Input": input,
        "Weight": helper.create_parameter(weight, [width, size], dtype),
        "Bias": helper.create_parameter(
            bias, [1, (7 if use_peepholes else 4) * width], dtype, is_bias=True
        ),
        "H0": h_0,
        "C0": c_0,
    }
    attrs = {
        "use_peepholes": use_peepholes,
        "is_reverse": is_reverse,
        "gate_activation": gate_activation,
        "cell_activation": cell_activation,
        "candidate_activation": candidate_activation,
    }
    hidden, cell = helper.new_variable(dtype, lod_level=1), helper.new_variable(dtype, lod_level=1)
    helper.skip_names(2)
    helper.append_op("lstm", inputs, {"Hidden": hidden, "Cell": cell}, attrs)
    return hidden, cell


@layer
def dynamic_lstmp(
    input: Variable,
    size: int,
    proj_size: int,
    param_attr: Any = None,
    bias_attr: Any = None,
    use_peepholes: bool = True,
    is_reverse: bool = False,
    gate_activation: str = "sigmoid",
    cell_activation: str = "tanh",
    candidate_activation: str = "tanh",
    proj_activation: str = "tanh",
    dtype: Any = "float32",
    name: str | None = None,
    h_0: Variable | None = None,
    c_0: Variable | None = None,
    cell_clip: float | None = None,
    proj_clip: float | None = None,
) -> tuple[Variable, Variable]:
    """As dynamic_lstm, the state projected to proj_size before the next step (Sak et al. 2014).

    Gives projections [N, proj_size] and cells [N, D]. cell_clip, proj_clip: their largest values.
    """
    helper = LayerHelper("lstmp", name)
    width = _check_width(helper, input, size)
    activations = (gate_activation, cell_activation, candidate_activation, proj_activation)
    check_activations(helper, *activations)
    weight, bias = _attrs(helper, param_attr, bias_attr)
    inputs: dict[str, Any] = {
        "Input": input,
        "Weight": helper.create_parameter(weight, [proj_size, size], dtype),
        "ProjWeight": helper.create_parameter(
            _attrs(helper, param_attr, None)[0], [width, proj_size], dtype
        ),
        "Bias": helper.create_parameter(
            bias, [1, (7 if use_peepholes else 4) * width], dtype, is_bias=True
        ),
        "H0": h_0,
        "C0": c_0,
    }
    attrs = {
        "use_peepholes": use_peepholes,
        "is_reverse": is_reverse,
        "gate_activation": gate_activation,
        "cell_activation": cell_activation,
        "candidate_activation": candidate_activation,
        "proj_activation": proj_activation,
        "cell_clip": cell_clip or 0.0,
        "proj_clip": proj_clip or 0.0,
    }
    made, cell = helper.new_variable(dtype, lod_level=1), helper.new_variable(dtype, lod_level=1)
    helper.skip_names(4)
    helper.append_op("lstmp", inputs, {"Projection": made, "Cell": cell}, attrs)
    return made, cell


@layer
def lstm_unit(
    x_t: Variable,
    hidden_t_prev: Variable,
    cell_t_prev: Variable,
    forget_bias: float = 0.0,
    param_attr: Any = None,
    bias_attr: Any = None,
    name: str | None = None,
) -> tuple[Variable, Variable]:
    """One step: the next state and cell [B, D], of x_t [B, M] and those before [B, D]."""
    helper = LayerHelper("lstm_unit", name)
    for what, value in (
        ("x_t", x_t),
        ("hidden_t_prev", hidden_t_prev),
        ("cell_t_prev", cell_t_prev),
    ):
        if len(helper.check_input(value, what).shape) != 2:
            raise helper.refuse(f"{what} must have 2 axes, got {value}")
    width = cell_t_prev.shape[1]
    if hidden_t_prev.shape[1] != width:
        raise helper.refuse(f"hidden_t_prev and cell_t_prev differ: {hidden_t_prev}, {cell_t_prev}")
    together = concat([x_t, hidden_t_prev], axis=1)
    x = fc(together, 4 * width, param_attr=param_attr, bias_attr=bias_attr)
    cell, hidden = helper.new_variable(x_t.dtype), helper.new_variable(x_t.dtype)
    outputs = {"C": cell, "H": hidden}
    attrs = {"forget_bias": forget_bias}
    helper.append_op("lstm_unit", {"X": x, "C_prev": cell_t_prev}, outputs, attrs)
    return hidden, cell


@layer
def lstm(
    input: Variable,
    init_h: Variable,
    init_c: Variable,
    max_len: int,
    hidden_size: int,
    num_layers: int,
    dropout_prob: float = 0.0,
    is_bidirec: bool = False,
    is_test: bool = False,
    name: str | None = None,
    default_initializer: Initializer | None = None,
    seed: int = -1,
) -> tuple[Variable, Variable, Variable]:
    """Layers over sequences of one length: outputs [T, B, W], last states and cells.

    input: [T, B, I]; init_h, init_c: [layers, B, D], both ways of a layer one after the other.
    The weights are one vector, as cuDNN packs them.
    """
    del max_len, seed  # sizes are those of the input; masks are drawn by torch
    helper = LayerHelper("cudnn_lstm", name)
    shapes = layer_shapes(helper.check_input(input).shape[2], hidden_size, num_layers, is_bidirec)
    size = sum(prod(shape) for shape in shapes)
    weight = helper.create_parameter(
        ParamAttr(), [size], input.dtype, default_initializer=default_initializer
    )
    out, last_h, last_c = (helper.new_variable(input.dtype) for _ in range(3))
    inputs = {"Input": input, "InitH": init_h, "InitC": init_c, "W": weight}
    attrs = {
        "hidden_size": hidden_size,
        "num_layers": num_layers,
        "is_bidirec": is_bidirec,
        "dropout_prob": dropout_prob,
        "is_test": is_test,
    }
    outputs = {"Out": out, "LastH": last_h, "LastC": last_c}
    helper.append_op("cudnn_lstm", inputs, outputs, attrs)
    return out, last_h, last_c
