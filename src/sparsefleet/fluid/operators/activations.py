"""Element-wise activations, dropout and softmax."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.framework.call_site import site_prefix
from sparsefleet.fluid.framework.initializer import Constant
from sparsefleet.fluid.framework.param_attr import to_param_attr
from sparsefleet.fluid.lowering.registry import SAME_FLOATS, Shape, float_rule, op
from sparsefleet.fluid.operators.layer_helper import LayerHelper, layer
from sparsefleet.fluid.operators.losses import cut_logits
from sparsefleet.fluid.operators.shaping import assign

__all__ = [
    "abs",
    "acos",
    "asin",
    "atan",
    "brelu",
    "ceil",
    "cos",
    "dropout",
    "elu",
    "erf",
    "exp",
    "floor",
    "gelu",
    "hard_shrink",
    "hard_sigmoid",
    "hard_swish",
    "leaky_relu",
    "log",
    "log1p",
    "logical_not",
    "logsigmoid",
    "maxout",
    "mish",
    "prelu",
    "reciprocal",
    "relu",
    "relu6",
    "round",
    "rsqrt",
    "selu",
    "sigmoid",
    "sign",
    "sin",
    "soft_relu",
    "softmax",
    "softplus",
    "softshrink",
    "softsign",
    "sqrt",
    "square",
    "stanh",
    "swish",
    "tanh",
    "tanh_shrink",
    "thresholded_relu",
]

Tensor = torch.Tensor

UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "abs": torch.abs,
    "acos": torch.acos,
    "asin": torch.asin,
    "atan": torch.atan,
    "ceil": torch.ceil,
    "cos": torch.cos,
    "erf": torch.erf,
    "exp": torch.exp,
    "floor": torch.floor,
    "log": torch.log,
    "logical_not": torch.logical_not,
    "logsigmoid": functional.logsigmoid,
    "reciprocal": torch.reciprocal,
    "relu": torch.relu,
    "round": torch.round,
    "rsqrt": torch.rsqrt,
    "sigmoid": torch.sigmoid,
    "sign": torch.sign,
    "sin": torch.sin,
    "softplus": functional.softplus,
    "softsign": functional.softsign,
    "sqrt": torch.sqrt,
    "square": torch.square,
    "tanh": torch.tanh,
    "tanh_shrink": functional.tanhshrink,
}
"""Operators without attributes."""


def _register(type: str, function: Callable[[Tensor], Tensor]) -> None:
    @op(type, "X", shape=None if type == "logical_not" else SAME_FLOATS)
    def run(x: Tensor) -> Tensor:
        return function(x)


for _type, _function in UNARY.items():
    _register(_type, _function)


def _same_along_axis(x: Shape, /, **attrs: Any) -> list[Shape] | None:
    return [x] if -len(x) <= attrs.get("axis", -1) < len(x) else None


ALONG_AXIS = float_rule(_same_along_axis)
"""Check that `axis` exists; the output has the input's shape."""


@op("softmax", "X", shape=ALONG_AXIS)
def softmax_op(x: Tensor, *, axis: int = -1) -> Tensor:
    return torch.softmax(cut_logits(x, axis), axis)


@op("leaky_relu", "X", shape=SAME_FLOATS)
def leaky_relu_op(x: Tensor, *, alpha: float = 0.02) -> Tensor:
    return functional.leaky_relu(x, alpha)


@op("relu6", "X", shape=SAME_FLOATS)
def relu6_op(x: Tensor, *, threshold: float = 6.0) -> Tensor:
    return x.clamp(0.0, threshold)


@op("elu", "X", shape=SAME_FLOATS)
def elu_op(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return functional.elu(x, alpha)


@op("gelu", "X", shape=SAME_FLOATS)
def gelu_op(x: Tensor, *, approximate: bool = False) -> Tensor:
    return functional.gelu(x, approximate="tanh" if approximate else "none")


@op("hard_sigmoid", "X", shape=SAME_FLOATS)
def hard_sigmoid_op(x: Tensor, *, slope: float = 0.2, offset: float = 0.5) -> Tensor:
    return (slope * x + offset).clamp(0.0, 1.0)


@op("swish", "X", shape=SAME_FLOATS)
def swish_op(x: Tensor, *, beta: float = 1.0) -> Tensor:
    return x * torch.sigmoid(beta * x)


@op("brelu", "X")
def brelu_op(x: Tensor, *, t_min: float = 0.0, t_max: float = 24.0) -> Tensor:
    return x.clamp(t_min, t_max)


@op("soft_relu", "X")
def soft_relu_op(x: Tensor, *, threshold: float = 40.0) -> Tensor:
    return torch.log1p(torch.exp(x.clamp(-threshold, threshold)))


@op("dropout", "X", shape=SAME_FLOATS)
def dropout_op(
    x: Tensor,
    *,
    dropout_prob: float,
    is_test: bool = False,
    dropout_implementation: str = "downgrade_in_infer",
    generator: torch.Generator | None = None,
) -> Tensor:
    upscale = dropout_implementation == "upscale_in_train"
    keep = 1.0 - dropout_prob
    if is_test:
        return x if upscale else x * keep
    if x.is_meta:
        return torch.empty_like(x)
    mask = (torch.rand(x.shape, generator=generator, device=x.device) >= dropout_prob).to(x.dtype)
    return x * mask / keep if upscale and keep > 0 else x * mask


_Unary = Callable[..., Variable]


def _unary(type: str) -> _Unary:
    def call(x: Variable, name: str | None = None) -> Variable:
        helper = LayerHelper(type, name)
        return helper.add(type, {"X": helper.check_input(x, "x")})

    call.__name__ = call.__qualname__ = type
    call.__doc__ = f"Return {UNARY[type].__name__} of each element."
    return layer(call)


abs = _unary("abs")
acos = _unary("acos")
asin = _unary("asin")
atan = _unary("atan")
ceil = _unary("ceil")
cos = _unary("cos")
exp = _unary("exp")
floor = _unary("floor")
log = _unary("log")
logsigmoid = _unary("logsigmoid")
reciprocal = _unary("reciprocal")
relu = _unary("relu")
round = _unary("round")
rsqrt = _unary("rsqrt")
sigmoid = _unary("sigmoid")
sin = _unary("sin")
softplus = _unary("softplus")
softsign = _unary("softsign")
sqrt = _unary("sqrt")
square = _unary("square")
tanh = _unary("tanh")
tanh_shrink = _unary("tanh_shrink")


@layer
def erf(x: Variable) -> Variable:
    """Return the error function of each element."""
    helper = LayerHelper("erf")
    return helper.add("erf", {"X": helper.check_input(x, "x")})


@layer
def sign(x: Variable | Any) -> Variable:
    """Return the sign of each element of a variable or array: -1, 0 or 1."""
    helper = LayerHelper("sign")
    given = assign(x) if isinstance(x, np.ndarray) else helper.check_input(x, "x")
    return helper.add("sign", {"X": given})


@layer
def logical_not(x: Variable, out: Variable | None = None, name: str | None = None) -> Variable:
    """Return the logical negation of each element: bool."""
    helper = LayerHelper("logical_not", name)
    made = helper.new_variable("bool", stop_gradient=True) if out is None else out
    helper.append_op("logical_not", {"X": helper.check_input(x, "x")}, {"Out": made})
    return made


@layer
def softmax(
    input: Variable, use_cudnn: bool = False, name: str | None = None, axis: int = -1
) -> Variable:
    """Normalize along an axis to positive numbers that sum to 1."""
    del use_cudnn
    helper = LayerHelper("softmax", name)
    return helper.add("softmax", {"X": helper.check_input(input)}, {"axis": axis})


@layer
def leaky_relu(x: Variable, alpha: float = 0.02, name: str | None = None) -> Variable:
    """Return x where x >= 0, and alpha * x elsewhere."""
    helper = LayerHelper("leaky_relu", name)
    return helper.add("leaky_relu", {"X": helper.check_input(x, "x")}, {"alpha": alpha})


@layer
def relu6(x: Variable, threshold: float = 6.0, name: str | None = None) -> Variable:
    """Clip x to 0..threshold."""
    helper = LayerHelper("relu6", name)
    return helper.add("relu6", {"X": helper.check_input(x, "x")}, {"threshold": threshold})


@layer
def elu(x: Variable, alpha: float = 1.0, name: str | None = None) -> Variable:
    """Return x where x >= 0, and alpha * (exp(x) - 1) elsewhere."""
    helper = LayerHelper("elu", name)
    return helper.add("elu", {"X": helper.check_input(x, "x")}, {"alpha": alpha})


@layer
def gelu(x: Variable, approximate: bool = False) -> Variable:
    """Return x times the normal cumulative distribution function at x."""
    helper = LayerHelper("gelu")
    return helper.add("gelu", {"X": helper.check_input(x, "x")}, {"approximate": approximate})


@layer
def hard_sigmoid(
    x: Variable, slope: float = 0.2, offset: float = 0.5, name: str | None = None
) -> Variable:
    """Return slope * x + offset, clipped to 0..1."""
    helper = LayerHelper("hard_sigmoid", name)
    attrs = {"slope": slope, "offset": offset}
    return helper.add("hard_sigmoid", {"X": helper.check_input(x, "x")}, attrs)


@layer
def swish(x: Variable, beta: float = 1.0, name: str | None = None) -> Variable:
    """Return x * sigmoid(x). Ignores beta, with a warning, like Fluid 1.5 to 1.8."""
    helper = LayerHelper("swish", name)
    if beta != 1.0:
        warnings.warn(
            f"{site_prefix()}layers.swish: beta={beta} has no effect, as in Fluid 1.8.5, so that "
            "trained models give the same results; write x * sigmoid(beta * x) to use it",
            stacklevel=2,
        )
    return helper.add("swish", {"X": helper.check_input(x, "x")}, {"beta": 1.0})


@layer
def brelu(
    x: Variable, t_min: float = 0.0, t_max: float = 24.0, name: str | None = None
) -> Variable:
    """Clip x to t_min..t_max."""
    helper = LayerHelper("brelu", name)
    attrs = {"t_min": t_min, "t_max": t_max}
    return helper.add("brelu", {"X": helper.check_input(x, "x")}, attrs)


@layer
def soft_relu(x: Variable, threshold: float = 40.0, name: str | None = None) -> Variable:
    """Return log(1 + exp(x)), with x clipped to -threshold..threshold."""
    helper = LayerHelper("soft_relu", name)
    return helper.add("soft_relu", {"X": helper.check_input(x, "x")}, {"threshold": threshold})


@layer
def dropout(
    x: Variable,
    dropout_prob: float,
    is_test: bool = False,
    seed: int | None = None,
    name: str | None = None,
    dropout_implementation: str = "downgrade_in_infer",
) -> Variable:
    """Set random elements to zero in training.

    dropout_implementation: "downgrade_in_infer" scales all elements down in test mode,
    "upscale_in_train" scales the remaining elements up in training.
    """
    helper = LayerHelper("dropout", name)
    if dropout_implementation not in ("downgrade_in_infer", "upscale_in_train"):
        raise helper.refuse(
            "dropout_implementation must be 'downgrade_in_infer' or 'upscale_in_train', got "
            f"{dropout_implementation!r}"
        )
    attrs = {
        "dropout_prob": float(dropout_prob),
        "is_test": is_test,
        "seed": seed or 0,
        "dropout_implementation": dropout_implementation,
    }
    return helper.add("dropout", {"X": helper.check_input(x, "x")}, attrs)


@op("hard_shrink", "X")
def hard_shrink_op(x: Tensor, *, threshold: float = 0.5) -> Tensor:
    return functional.hardshrink(x, threshold)


@op("softshrink", "X")
def softshrink_op(x: Tensor, *, alpha: float = 0.5) -> Tensor:
    return functional.softshrink(x, alpha)


@op("thresholded_relu", "X")
def thresholded_relu_op(x: Tensor, *, threshold: float = 1.0) -> Tensor:
    return x * (x > threshold)


@op("hard_swish", "X")
def hard_swish_op(
    x: Tensor, *, threshold: float = 6.0, scale: float = 6.0, offset: float = 3.0
) -> Tensor:
    return x * (x + offset).clamp(0.0, threshold) / scale


@op("stanh", "X", shape=SAME_FLOATS)
def stanh_op(x: Tensor, *, scale_a: float = 0.67, scale_b: float = 1.7159) -> Tensor:
    return scale_b * torch.tanh(scale_a * x)


@op("selu", "X")
def selu_op(
    x: Tensor, *, scale: float = 1.0507009873554805, alpha: float = 1.6732632423543772
) -> Tensor:
    return scale * torch.where(x > 0, x, alpha * torch.expm1(x.clamp(max=0.0)))


@op("mish", "X")
def mish_op(x: Tensor, *, threshold: float = 20.0) -> Tensor:
    return x * torch.tanh(functional.softplus(x, threshold=threshold))


@op("log1p", "X")
def log1p_op(x: Tensor) -> Tensor:
    return torch.log1p(x)


@op("prelu", "X Alpha")
def prelu_op(x: Tensor, alpha: Tensor, *, mode: str) -> Tensor:
    """Multiply negative values by alpha.

    Alpha holds a single number, one number per channel or one per element.
    """
    if mode == "channel":
        alpha = alpha.reshape(1, -1, *[1] * (x.dim() - 2))
    elif mode == "element":
        alpha = alpha.reshape(1, *x.shape[1:])
    return torch.where(x > 0, x, alpha * x)


@op("maxout", "X")
def maxout_op(x: Tensor, *, groups: int, axis: int = 1) -> Tensor:
    """Return the maximum of each group of `groups` consecutive channels."""
    axis %= x.dim()
    if x.shape[axis] % groups:
        raise ValueError(f"{x.shape[axis]} channels are not divisible by {groups} groups")
    shape = (*x.shape[:axis], x.shape[axis] // groups, groups, *x.shape[axis + 1 :])
    return x.reshape(shape).amax(axis + 1)


def _add(type: str, x: Variable, name: str | None = None, **settings: float | None) -> Variable:
    """Add an operator with the given attrs; omit attrs that are None."""
    helper = LayerHelper(type, name)
    attrs = {key: value for key, value in settings.items() if value is not None}
    return helper.add(type, {"X": helper.check_input(x, "x")}, attrs)


@layer
def hard_shrink(x: Variable, threshold: float | None = None) -> Variable:
    """Return x where |x| > threshold (0.5 by default), and 0 elsewhere."""
    return _add("hard_shrink", x, threshold=threshold)


@layer
def softshrink(x: Variable, alpha: float | None = None) -> Variable:
    """Shrink x towards 0 by alpha (0.5 by default)."""
    return _add("softshrink", x, alpha=alpha)


@layer
def thresholded_relu(x: Variable, threshold: float | None = None) -> Variable:
    """Return x where x > threshold (1 by default), and 0 elsewhere."""
    return _add("thresholded_relu", x, threshold=threshold)


@layer
def hard_swish(
    x: Variable,
    threshold: float = 6.0,
    scale: float = 6.0,
    offset: float = 3.0,
    name: str | None = None,
) -> Variable:
    """Return x * clip(x + offset, 0, threshold) / scale."""
    return _add("hard_swish", x, name, threshold=threshold, scale=scale, offset=offset)


@layer
def stanh(
    x: Variable, scale_a: float = 0.67, scale_b: float = 1.7159, name: str | None = None
) -> Variable:
    """Return scale_b * tanh(scale_a * x)."""
    return _add("stanh", x, name, scale_a=scale_a, scale_b=scale_b)


@layer
def selu(
    x: Variable, scale: float | None = None, alpha: float | None = None, name: str | None = None
) -> Variable:
    """Return scale * x where x > 0, else scale * alpha * (exp(x) - 1) (Klambauer et al., 2017)."""
    return _add("selu", x, name, scale=scale, alpha=alpha)


@layer
def mish(x: Variable, threshold: float = 20, name: str | None = None) -> Variable:
    """Return x * tanh(log(1 + exp(x)))."""
    return _add("mish", x, name, threshold=float(threshold))


@layer
def log1p(x: Variable, out: Variable | None = None, name: str | None = None) -> Variable:
    """Return log(1 + x)."""
    helper = LayerHelper("log1p", name)
    made = helper.new_variable() if out is None else out
    helper.append_op("log1p", {"X": helper.check_input(x, "x")}, {"Out": made})
    return made


@layer
def prelu(x: Variable, mode: str, param_attr: Any = None, name: str | None = None) -> Variable:
    """Multiply negative values by a learned slope; mode is "all", "channel" or "element"."""
    helper = LayerHelper("prelu", name)
    shapes = {"all": [1], "channel": [1, x.shape[1], 1, 1], "element": [1, *x.shape[1:]]}
    known = to_param_attr(param_attr)
    if mode not in shapes or known is None:
        raise helper.refuse(f"mode must be 'all', 'channel' or 'element', got {mode!r}")
    alpha = helper.create_parameter(
        known, shapes[mode], x.dtype, default_initializer=Constant(0.25)
    )
    return helper.add("prelu", {"X": helper.check_input(x, "x"), "Alpha": alpha}, {"mode": mode})


@layer
def maxout(x: Variable, groups: int, name: str | None = None, axis: int = 1) -> Variable:
    """Return the maximum of each group of `groups` consecutive channels."""
    helper = LayerHelper("maxout", name)
    if axis not in (1, -1, 3):
        raise helper.refuse(f"axis must be 1, 3 or -1, the channel axis, got {axis!r}")
    return helper.add("maxout", {"X": helper.check_input(x, "x")}, {"groups": groups, "axis": axis})
