"""Layers that take means and deviations out."""

from __future__ import annotations

import math
from typing import Any

from sparsefleet.fluid import unique_name
from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.initializer import Constant, Normal
from sparsefleet.fluid.layer_helper import LayerHelper, layer
from sparsefleet.fluid.param_attr import ParamAttr, to_param_attr

__all__ = [
    "batch_norm",
    "data_norm",
    "group_norm",
    "inplace_abn",
    "instance_norm",
    "layer_norm",
    "lrn",
    "spectral_norm",
]


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


@layer
def inplace_abn(
    input: Variable,
    act: str | None = None,
    is_test: bool = False,
    momentum: float = 0.9,
    epsilon: float = 1e-5,
    param_attr: Any = None,
    bias_attr: Any = None,
    data_layout: str = "NCHW",
    name: str | None = None,
    moving_mean_name: str | None = None,
    moving_variance_name: str | None = None,
    do_model_average_for_mean_and_var: bool = True,
    use_global_stats: bool = False,
    act_alpha: float = 1.0,
) -> Variable:
    """`batch_norm` and an activation: None, "identity", "leaky_relu" or "elu" with act_alpha."""
    helper = LayerHelper("inplace_abn", name)
    if act not in (None, "identity", "leaky_relu", "elu"):
        raise helper.refuse(f"act must be None, 'identity', 'leaky_relu' or 'elu', got {act!r}")
    out = batch_norm(
        input,
        None,
        is_test,
        momentum,
        epsilon,
        param_attr,
        bias_attr,
        data_layout,
        False,
        helper.name,
        moving_mean_name,
        moving_variance_name,
        do_model_average_for_mean_and_var,
        use_global_stats,
    )
    if act in (None, "identity"):
        return out
    return helper.activate(out, {"type": act, "alpha": act_alpha})


@layer
def group_norm(
    input: Variable,
    groups: int,
    epsilon: float = 1e-5,
    param_attr: Any = None,
    bias_attr: Any = None,
    act: str | None = None,
    data_layout: str = "NCHW",
    name: str | None = None,
) -> Variable:
    """Mean 0 and deviation 1 over each group of channels; scaled and shifted if attrs are given."""
    helper = LayerHelper("group_norm", name)
    if data_layout not in ("NCHW", "NHWC"):
        raise helper.refuse(f"data_layout must be 'NCHW' or 'NHWC', got {data_layout!r}")
    channels = helper.check_input(input).shape[1 if data_layout == "NCHW" else -1]
    if groups < 1 or channels % groups:
        raise helper.refuse(f"{channels} channels are not divisible by {groups} groups")
    inputs: dict[str, Any] = {"X": input}
    scale_attr, shift_attr = to_param_attr(param_attr), to_param_attr(bias_attr)
    if param_attr and scale_attr is not None:
        inputs["Scale"] = helper.create_parameter(
            scale_attr, [channels], input.dtype, default_initializer=Constant(1.0)
        )
    if bias_attr and shift_attr is not None:
        inputs["Bias"] = helper.create_parameter(shift_attr, [channels], input.dtype, is_bias=True)
    attrs = {"groups": groups, "epsilon": epsilon, "data_layout": data_layout}
    out = helper.add("group_norm", inputs, attrs, slot="Y", out=_third(helper))
    return helper.activate(out, act)


def _third(helper: LayerHelper) -> Variable:
    """The variable that comes after those of Fluid for mean and variance."""
    for _ in range(2):
        unique_name.generate("_generated_var")
    return helper.create_variable()


@layer
def instance_norm(
    input: Variable,
    epsilon: float = 1e-5,
    param_attr: Any = None,
    bias_attr: Any = None,
    name: str | None = None,
) -> Variable:
    """Mean 0 and deviation 1 over each channel of each picture, then scaled and shifted."""
    helper = LayerHelper("instance_norm", name)
    scale_attr, shift_attr = to_param_attr(param_attr), to_param_attr(bias_attr)
    if scale_attr is None or shift_attr is None:
        raise helper.refuse("param_attr and bias_attr cannot be False")
    width = [helper.check_input(input).shape[1]]
    inputs = {
        "X": input,
        "Scale": helper.create_parameter(
            scale_attr, width, input.dtype, default_initializer=Constant(1.0)
        ),
        "Bias": helper.create_parameter(
            shift_attr, width, input.dtype, is_bias=True, default_initializer=Constant(0.0)
        ),
    }
    helper.skip_names(2)  # mean and variance
    return helper.add("instance_norm", inputs, {"epsilon": epsilon}, slot="Y")


@layer
def lrn(
    input: Variable,
    n: int = 5,
    k: float = 1.0,
    alpha: float = 1e-4,
    beta: float = 0.75,
    name: str | None = None,
    data_format: str = "NCHW",
) -> Variable:
    """x / (k + alpha * the squares of the n channels around it) ** beta."""
    helper = LayerHelper("lrn", name)
    if len(helper.check_input(input).shape) != 4 or data_format not in ("NCHW", "NHWC"):
        raise helper.refuse(f"takes pictures NCHW or NHWC, got {input}, {data_format!r}")
    if n < 1 or n % 2 == 0:
        raise helper.refuse(f"n must be odd, got {n}")
    attrs = {"n": n, "k": k, "alpha": alpha, "beta": beta, "data_format": data_format}
    helper.skip_names(1)  # the divisor
    return helper.add("lrn", {"X": input}, attrs)


@layer
def data_norm(
    input: Variable,
    act: str | None = None,
    epsilon: float = 1e-5,
    param_attr: Any = None,
    data_layout: str = "NCHW",
    in_place: bool = False,
    name: str | None = None,
    moving_mean_name: str | None = None,
    moving_variance_name: str | None = None,
    do_model_average_for_mean_and_var: bool = True,
    slot_dim: int = -1,
    sync_stats: bool = False,
    summary_decay_rate: float = 0.9999999,
    enable_scale_and_shift: bool = False,
) -> Variable:
    """Mean 0 and deviation 1 by the number, sum and squares of all examples so far [N, D].

    These are parameters; what a batch adds to them is their gradient.
    param_attr: a dict of their first values: batch_size, batch_sum, batch_square; and scale_w and
        bias with enable_scale_and_shift.
    slot_dim: so many columns are a slot; one whose first column is 0 was not seen, and stays 0.
    """
    del in_place, moving_mean_name, moving_variance_name, do_model_average_for_mean_and_var
    del sync_stats, summary_decay_rate  # of several GPUs
    helper = LayerHelper("data_norm", name)
    given = param_attr if isinstance(param_attr, dict) else {}
    width = helper.check_input(input).shape[1 if data_layout == "NCHW" else -1]

    def parameter(suffix: str, key: str, value: float) -> Variable:
        attr = ParamAttr(
            name=f"{name or 'dn'}.{suffix}", initializer=Constant(float(given.get(key, value)))
        )
        return helper.create_parameter(attr, [width], input.dtype)

    inputs = {
        "X": input,
        "BatchSize": parameter("batch_size", "batch_size", 1e4),
        "BatchSum": parameter("batch_sum", "batch_sum", 0.0),
        "BatchSquareSum": parameter("batch_square_sum", "batch_square", 1e4),
    }
    attrs = {"epsilon": epsilon, "slot_dim": slot_dim}
    out = helper.add("data_norm", inputs, attrs, slot="Y", out=_third(helper))
    if enable_scale_and_shift:
        scale, shift = parameter("scale_w", "scale_w", 1.0), parameter("bias", "bias", 0.0)
        out = helper.add("elementwise_mul", {"X": out, "Y": scale}, {"axis": -1})
        out = helper.add("elementwise_add", {"X": out, "Y": shift}, {"axis": -1})
    return helper.activate(out, act)


@layer
def spectral_norm(
    weight: Variable,
    dim: int = 0,
    power_iters: int = 1,
    eps: float = 1e-12,
    name: str | None = None,
) -> Variable:
    """A weight divided by its largest singular value, as a matrix with rows along `dim`."""
    helper = LayerHelper("spectral_norm", name)
    height = helper.check_input(weight, "weight").shape[dim]
    width = math.prod(weight.shape) // height
    vectors = []
    for size in (height, width):
        attr = ParamAttr(initializer=Normal(0.0, 1.0))
        vectors.append(helper.create_parameter(attr, [size], weight.dtype))
        vectors[-1].stop_gradient = True
    inputs = {"Weight": weight, "U": vectors[0], "V": vectors[1]}
    attrs = {"dim": dim, "power_iters": power_iters, "eps": eps}
    return helper.add("spectral_norm", inputs, attrs)
