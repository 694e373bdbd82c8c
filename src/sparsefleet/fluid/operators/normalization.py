"""Normalization layers."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional

from sparsefleet.fluid.framework import Variable, unique_name
from sparsefleet.fluid.framework.initializer import Constant, Normal
from sparsefleet.fluid.framework.param_attr import ParamAttr, to_param_attr
from sparsefleet.fluid.lowering.registry import Shape, float_rule, op, product_of
from sparsefleet.fluid.operators.layer_helper import LayerHelper, layer, op_settings
from sparsefleet.fluid.operators.pools import channels_first, channels_last

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

Tensor = torch.Tensor


def _normalized(x: Shape, /, *others: Shape | None, **attrs: Any) -> list[Shape] | None:
    begin = attrs.get("begin_norm_axis", 1)
    if not 0 < begin < len(x) or min(x[begin:]) < 0:
        return None
    count = product_of(x[begin:])
    return [x] if all(other in (None, (count,)) for other in others) else None


@op("layer_norm", "X Scale? Bias?", "Y", shape=float_rule(_normalized))
def layer_norm_op(
    x: Tensor,
    scale: Tensor | None,
    bias: Tensor | None,
    *,
    begin_norm_axis: int = 1,
    epsilon: float = 1e-5,
) -> Tensor:
    shape = x.shape[begin_norm_axis:]
    weight = None if scale is None else scale.reshape(shape)
    return functional.layer_norm(
        x, shape, weight, None if bias is None else bias.reshape(shape), epsilon
    )


def _batch_normalized(
    x: Shape, *of_channels: Shape | None, data_layout: str = "NCHW", **_: Any
) -> list[Shape] | None:
    channels = (x[1 if data_layout == "NCHW" else -1],) if len(x) > 1 else ()
    if any(shape != channels for shape in of_channels[:4]):
        return None
    return [x, channels, channels]


@op(
    "batch_norm",
    "X Scale Bias Mean Variance MomentumTensor?",
    "Y MeanOut VarianceOut",
    shape=float_rule(_batch_normalized),
)
def batch_norm_op(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    momentum_tensor: Tensor | None = None,
    *,
    momentum: Any = 0.9,
    epsilon: float = 1e-5,
    is_test: bool = False,
    use_global_stats: bool = False,
    data_layout: str = "NCHW",
) -> list[Tensor]:
    """Normalize over the batch. Stores the variance divided by N, as in Fluid; torch divides by N -
    1.

    For half-precision x, the statistics are float32, as stored.
    """
    channels = 1 if data_layout == "NCHW" else x.dim() - 1
    axes = [axis for axis in range(x.dim()) if axis != channels]
    shape = [1 if axis != channels else -1 for axis in range(x.dim())]
    momentum = momentum if momentum_tensor is None else momentum_tensor.detach()
    new_mean, new_variance = mean, variance
    use_mean, use_variance = mean, variance
    if not is_test and not use_global_stats:
        if x.numel() == x.shape[channels] and not x.is_meta:  # one value each
            return [x, mean, variance]
        use_variance, use_mean = torch.var_mean(x.to(mean.dtype), axes, correction=0)
        new_mean = mean * momentum + use_mean.detach() * (1 - momentum)
        new_variance = variance * momentum + use_variance.detach() * (1 - momentum)
    factor = scale * torch.rsqrt(use_variance + epsilon)
    y = (x - use_mean.reshape(shape)) * factor.reshape(shape) + bias.reshape(shape)
    return [y.to(x.dtype), new_mean, new_variance]


@op("group_norm", "X Scale? Bias?", "Y", lod="none")
def group_norm_op(
    x: Tensor,
    scale: Tensor | None,
    bias: Tensor | None,
    *,
    groups: int,
    epsilon: float = 1e-5,
    data_layout: str = "NCHW",
) -> Tensor:
    """Normalize each group of channels to mean 0 and variance 1."""
    first = channels_first(x, data_layout).contiguous()
    num_images, num_channels, *area = first.shape
    # torch's group_norm rejects groups of one value
    y = torch.native_group_norm(
        first, scale, bias, num_images, num_channels, math.prod(area), groups, epsilon
    )[0]
    return channels_last(y, data_layout)


@op("instance_norm", "X Scale Bias", "Y", lod="none")
def instance_norm_op(x: Tensor, scale: Tensor, bias: Tensor, *, epsilon: float = 1e-5) -> Tensor:
    """Normalize each channel of each image to mean 0 and variance 1."""
    variance, mean = torch.var_mean(x, list(range(2, x.dim())), correction=0, keepdim=True)
    shape = [1, -1, *[1] * (x.dim() - 2)]
    normal = (x - mean) * torch.rsqrt(variance + epsilon)
    return normal * scale.reshape(shape) + bias.reshape(shape)


@op("lrn", "X", lod="none")
def lrn_op(
    x: Tensor,
    *,
    n: int = 5,
    k: float = 1.0,
    alpha: float = 1e-4,
    beta: float = 0.75,
    data_format: str = "NCHW",
) -> Tensor:
    """Normalize each value by a power of the sum of squares of n neighboring channels."""
    x = channels_first(x, data_format)
    before = (n - 1) // 2
    squares = functional.pad(x.square(), [0, 0, 0, 0, before, n - 1 - before])
    sums = sum(squares[:, shift : shift + x.shape[1]] for shift in range(n))
    return channels_last(x * (k + alpha * sums) ** -beta, data_format)


class _DataNorm(torch.autograd.Function):
    """Normalizes by running sums.

    The backward pass returns what the batch adds to each sum as the gradient of that sum.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, *states: Any) -> Tensor:
        size, total, squares, epsilon, slot_dim = states
        mean, scale = total / size, (size / squares).sqrt()
        y: Tensor = (x - mean) * scale
        known = None
        if slot_dim > 0:  # a slot has never been seen if its first value, the count, is 0
            known = _seen(x, slot_dim)
            y = y * known
        ctx.save_for_backward(x, mean, scale, known)
        ctx.epsilon = epsilon
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        x, mean, scale, known = ctx.saved_tensors
        seen = torch.ones_like(x) if known is None else known
        counts = seen.sum(0)
        sums = (x * seen).sum(0)
        squares = ((x - mean).square() * seen).sum(0)
        if known is None:
            added = (counts, sums, squares + counts * ctx.epsilon)
        else:
            parts = counts.clamp(min=1)
            there = (counts > 0).to(x.dtype)
            added = (there, sums / parts, (squares / parts + ctx.epsilon) * there)
        return (gradients[0] * scale, *added, None, None)


def _seen(x: Tensor, slot_dim: int) -> Tensor:
    first = x[:, ::slot_dim].abs() >= 1e-7
    return first.repeat_interleave(slot_dim, 1)[:, : x.shape[1]].to(x.dtype)


@op("data_norm", "X BatchSize BatchSum BatchSquareSum", "Y")
def data_norm_op(
    x: Tensor,
    size: Tensor,
    total: Tensor,
    squares: Tensor,
    *,
    epsilon: float = 1e-5,
    slot_dim: int = -1,
) -> Tensor:
    """Normalize to mean 0 and variance 1 with sums that are updated like parameters."""
    made: Tensor = _DataNorm.apply(x, size, total, squares, epsilon, slot_dim)  # type: ignore[no-untyped-call]
    return made


@op("spectral_norm", "Weight U V")
def spectral_norm_op(
    weight: Tensor, u: Tensor, v: Tensor, *, dim: int = 0, power_iters: int = 1, eps: float = 1e-12
) -> Tensor:
    """Divide a weight by its largest singular value, found by power iteration from u and v."""
    order = [dim, *(axis for axis in range(weight.dim()) if axis != dim)]
    matrix = weight.permute(order).reshape(weight.shape[dim], -1)
    left, right = u, v
    with torch.no_grad():
        for _ in range(power_iters):
            right = matrix.T @ left
            right = right / (right.norm() + eps)
            left = matrix @ right
            left = left / (left.norm() + eps)
    return weight / (left @ matrix @ right)


def _lengths(v: Tensor, dim: int) -> Tensor:
    """Return the norm of each slice along dim, or of the whole tensor if dim is -1: [n]."""
    found: Tensor = v.norm().reshape(1) if dim < 0 else v.movedim(dim, 0).flatten(1).norm(dim=1)
    return found


@op("weight_norm_length", "V", lod="none")
def weight_norm_length(v: Tensor, *, dim: int = -1) -> Tensor:
    """Return the norms g for which `weight_norm(v, g)` is v."""
    return _lengths(v, dim)


@op("weight_norm", "V G", lod="none")
def weight_norm(v: Tensor, g: Tensor, *, dim: int = -1) -> Tensor:
    """Return g * v / |v|, with norms taken along `dim`."""
    factor = g / _lengths(v, dim)
    return v * (factor if dim < 0 else factor.reshape(-1, *[1] * (v.dim() - dim - 1)))


def _scale_and_bias(
    helper: LayerHelper, width: int, dtype: str, attrs: tuple[Any, ...]
) -> dict[str, Variable]:
    """Create the factors and the shifts of a normalization, except those without an attr."""
    scale, bias = attrs
    made: dict[str, Variable] = {}
    if scale:
        first = Constant(1.0)
        made["Scale"] = helper.create_parameter(scale, [width], dtype, default_initializer=first)
    if bias:
        made["Bias"] = helper.create_parameter(bias, [width], dtype, is_bias=True)
    return made


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
    """Normalize axes from begin_norm_axis on to mean 0 and variance 1, then scale and shift."""
    helper = LayerHelper("layer_norm", name)
    width = math.prod(helper.check_input(input).shape[begin_norm_axis:])
    inputs: dict[str, Any] = {"X": input}
    attrs_of_both = (scale and to_param_attr(param_attr), shift and to_param_attr(bias_attr))
    inputs |= _scale_and_bias(helper, width, input.dtype, attrs_of_both)
    attrs = {"begin_norm_axis": begin_norm_axis, "epsilon": epsilon}
    helper.skip_names(2)  # mean and variance
    return helper.activate(helper.add("layer_norm", inputs, attrs, slot="Y"), act)


@layer
def batch_norm(
    input: Variable,
    act: str | None = None,
    is_test: bool = False,
    momentum: Any = 0.9,
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
    """Normalize each channel over the batch; in test mode, use the stored statistics."""
    del in_place
    helper = LayerHelper("batch_norm", name)
    channels = helper.check_input(input).shape[1 if data_layout == "NCHW" else -1]
    scale_attr, shift_attr = to_param_attr(param_attr), to_param_attr(bias_attr)
    if scale_attr is None or shift_attr is None:
        raise helper.refuse("param_attr and bias_attr cannot be False")
    trained = _scale_and_bias(helper, channels, input.dtype, (scale_attr, shift_attr))
    states = [
        helper.create_parameter(
            ParamAttr(
                given,
                Constant(value),
                trainable=False,
                do_model_average=do_model_average_for_mean_and_var,
            ),
            [channels],
            input.dtype,
        )
        for given, value in ((moving_mean_name, 0.0), (moving_variance_name, 1.0))
    ]
    helper.skip_names(2)  # mean and variance of the batch
    out = helper.new_variable(input.dtype)
    inputs = {"X": input, **trained, "Mean": states[0], "Variance": states[1]}
    outputs = {"Y": out, "MeanOut": states[0], "VarianceOut": states[1]}
    if isinstance(momentum, Variable):
        inputs["MomentumTensor"] = momentum
    attrs = op_settings(
        "batch_norm", locals(), momentum=0.9 if isinstance(momentum, Variable) else momentum
    )
    helper.append_op("batch_norm", inputs, outputs, attrs)
    return helper.activate(out, act)


@layer
def inplace_abn(
    input: Variable,
    act: str | None = None,
    is_test: bool = False,
    momentum: Any = 0.9,
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
    """Apply `batch_norm` and an activation: None, "identity", "leaky_relu" or "elu" with
    act_alpha.
    """
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
    """Normalize each group of channels; if attrs are given, also scale and shift."""
    helper = LayerHelper("group_norm", name)
    if data_layout not in ("NCHW", "NHWC"):
        raise helper.refuse(f"data_layout must be 'NCHW' or 'NHWC', got {data_layout!r}")
    channels = helper.check_input(input).shape[1 if data_layout == "NCHW" else -1]
    if groups < 1 or channels % groups:
        raise helper.refuse(f"{channels} channels are not divisible by {groups} groups")
    inputs: dict[str, Any] = {"X": input}
    attrs_of_both = tuple(attr and to_param_attr(attr) for attr in (param_attr, bias_attr))
    inputs |= _scale_and_bias(helper, channels, input.dtype, attrs_of_both)
    attrs = op_settings("group_norm", locals())
    out = helper.add("group_norm", inputs, attrs, slot="Y", out=_third(helper))
    return helper.activate(out, act)


def _third(helper: LayerHelper) -> Variable:
    """Return the output variable, named as in Fluid, which creates it after the mean and
    variance.
    """
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
    """Normalize each channel of each image, then scale and shift."""
    helper = LayerHelper("instance_norm", name)
    scale_attr, shift_attr = to_param_attr(param_attr), to_param_attr(bias_attr)
    if scale_attr is None or shift_attr is None:
        raise helper.refuse("param_attr and bias_attr cannot be False")
    width = helper.check_input(input).shape[1]
    trained = _scale_and_bias(helper, width, input.dtype, (scale_attr, shift_attr))
    inputs = {"X": input, **trained}
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
    """Return x / (k + alpha * (sum of squares of n neighboring channels)) ** beta."""
    helper = LayerHelper("lrn", name)
    if len(helper.check_input(input).shape) != 4 or data_format not in ("NCHW", "NHWC"):
        raise helper.refuse(f"expected images in NCHW or NHWC, got {input}, {data_format!r}")
    if n < 1 or n % 2 == 0:
        raise helper.refuse(f"n must be odd, got {n}")
    attrs = op_settings("lrn", locals())
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
    """Normalize [N, D] with the count, sum and squares of all examples so far.

    These are parameters, and their gradients are the amounts that a batch adds to them.
    param_attr: a dict of initial values for batch_size, batch_sum and batch_square, and for scale_w
        and bias with enable_scale_and_shift.
    slot_dim: columns per slot; a slot whose first column is 0 has never been seen and stays 0.
    """
    del in_place, moving_mean_name, moving_variance_name, do_model_average_for_mean_and_var
    del sync_stats, summary_decay_rate  # for several GPUs
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
    """Divide a weight, as a matrix with rows along `dim`, by its largest singular value."""
    helper = LayerHelper("spectral_norm", name)
    height = helper.check_input(weight, "weight").shape[dim]
    width = math.prod(weight.shape) // height
    vectors = []
    for size in (height, width):
        attr = ParamAttr(initializer=Normal(0.0, 1.0))
        vectors.append(helper.create_parameter(attr, [size], weight.dtype))
        vectors[-1].stop_gradient = True
    inputs = {"Weight": weight, "U": vectors[0], "V": vectors[1]}
    attrs = op_settings("spectral_norm", locals())
    return helper.add("spectral_norm", inputs, attrs)
