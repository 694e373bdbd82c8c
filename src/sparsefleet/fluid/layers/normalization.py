"""Layers that take means and deviations out."""

from __future__ import annotations

import math
from typing import Any

from sparsefleet.fluid import unique_name
from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.initializer import Constant
from sparsefleet.fluid.layer_helper import LayerHelper, layer
from sparsefleet.fluid.param_attr import to_param_attr

__all__ = ["batch_norm", "layer_norm"]


@layer
def layer_norm(
    input: Variable,
    scale: bool = True,
    shift: bool = True,
    begin_norm_axis: int = 1,
    epsilon: float = 1e-5,
    param_attr: Any = None,
    bias_attr: Any = None,
    act: str | None = None,
    name: str | None = None,
) -> Variable:
    """Mean 0 and deviation 1 over the sizes from begin_norm_axis on, then scaled and shifted."""
    helper = LayerHelper("layer_norm", name)
    width = math.prod(helper.check_input(input).shape[begin_norm_axis:])
    inputs: dict[str, Any] = {"X": input}
    scale_attr, shift_attr = to_param_attr(param_attr), to_param_attr(bias_attr)
    if scale and scale_attr is not None:
        inputs["Scale"] = helper.create_parameter(
            scale_attr, [width], input.dtype, default_initializer=Constant(1.0)
        )
    if shift and shift_attr is not None:
        inputs["Bias"] = helper.create_parameter(shift_attr, [width], input.dtype, is_bias=True)
    attrs = {"begin_norm_axis": begin_norm_axis, "epsilon": epsilon}
    helper.skip_names(2)  # mean and variance
    return helper.activate(helper.add("layer_norm", inputs, attrs, slot="Y"), act)


@layer
def batch_norm(
    input: Variable,
    act: str | None = None,
    is_test: bool = False,
    momentum: float = 0.9,
    epsilon: float = 1e-5,
    param_attr: Any = None,
    bias_attr: Any = None,
    data_layout: str = "NCHW",
    in_place: bool = False,
    name: str | None = None,
    moving_mean_name: str | None = None,
    moving_variance_name: str | None = None,
    do_model_average_for_mean_and_var: bool = True,
    use_global_stats: bool = False,
) -> Variable:
    """Mean 0 and deviation 1 over the batch, a channel at a time; when testing, of those kept."""
    del in_place, do_model_average_for_mean_and_var
    helper = LayerHelper("batch_norm", name)
    channels = helper.check_input(input).shape[1 if data_layout == "NCHW" else -1]
    scale_attr, shift_attr = to_param_attr(param_attr), to_param_attr(bias_attr)
    if scale_attr is None or shift_attr is None:
        raise helper.refuse("param_attr and bias_attr cannot be False")
    scale = helper.create_parameter(
        scale_attr, [channels], input.dtype, default_initializer=Constant(1.0)
    )
    bias = helper.create_parameter(shift_attr, [channels], input.dtype, is_bias=True)
    states = [
        helper.create_state(
            given or unique_name.generate(f"{helper.name}.w"), [channels], input.dtype, value
        )
        for given, value in ((moving_mean_name, 0.0), (moving_variance_name, 1.0))
    ]
    helper.skip_names(2)  # mean and variance of the batch
    out = helper.new_variable(input.dtype)
    inputs = {"X": input, "Scale": scale, "Bias": bias, "Mean": states[0], "Variance": states[1]}
    outputs = {"Y": out, "MeanOut": states[0], "VarianceOut": states[1]}
    attrs = {
        "momentum": momentum,
        "epsilon": epsilon,
        "is_test": is_test,
        "data_layout": data_layout,
        "use_global_stats": use_global_stats,
    }
    helper.append_op("batch_norm", inputs, outputs, attrs)
    return helper.activate(out, act)
