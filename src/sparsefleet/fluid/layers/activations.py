"""Functions of each element."""

from __future__ import annotations

from collections.abc import Callable

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.layer_helper import LayerHelper, layer
from sparsefleet.fluid.ops.activations import UNARY

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
    "hard_sigmoid",
    "leaky_relu",
    "log",
    "logical_not",
    "logsigmoid",
    "reciprocal",
    "relu",
    "relu6",
    "round",
    "rsqrt",
    "sigmoid",
    "sign",
    "sin",
    "soft_relu",
    "softmax",
    "softplus",
    "softsign",
    "sqrt",
    "square",
    "swish",
    "tanh",
    "tanh_shrink",
]

_Unary = Callable[..., Variable]


def _unary(type: str) -> _Unary:
    def call(x: Variable, name: str | None = None) -> Variable:
        helper = LayerHelper(type, name)
        return helper.add(type, {"X": helper.check_input(x, "x")})

    call.__name__ = call.__qualname__ = type
    call.__doc__ = f"{UNARY[type].__name__} of each element."
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
    """The error function of each element."""
    helper = LayerHelper("erf")
    return helper.add("erf", {"X": helper.check_input(x, "x")})


@layer
def sign(x: Variable) -> Variable:
    """-1, 0 or 1 of each element."""
    helper = LayerHelper("sign")
    return helper.add("sign", {"X": helper.check_input(x, "x")})


@layer
def logical_not(x: Variable, out: Variable | None = None, name: str | None = None) -> Variable:
    """not x, element by element: bool."""
    helper = LayerHelper("logical_not", name)
    made = helper.new_variable("bool", stop_gradient=True) if out is None else out
    helper.append_op("logical_not", {"X": helper.check_input(x, "x")}, {"Out": made})
    return made


@layer
def softmax(
    input: Variable, use_cudnn: bool = False, name: str | None = None, axis: int = -1
) -> Variable:
    """Along an axis, positive numbers whose sum is 1."""
    del use_cudnn
    helper = LayerHelper("softmax", name)
    return helper.add("softmax", {"X": helper.check_input(input)}, {"axis": axis})


@layer
def leaky_relu(x: Variable, alpha: float = 0.02, name: str | None = None) -> Variable:
    """x, or alpha * x below 0."""
    helper = LayerHelper("leaky_relu", name)
    return helper.add("leaky_relu", {"X": helper.check_input(x, "x")}, {"alpha": alpha})


@layer
def relu6(x: Variable, threshold: float = 6.0, name: str | None = None) -> Variable:
    """x into 0..threshold."""
    helper = LayerHelper("relu6", name)
    return helper.add("relu6", {"X": helper.check_input(x, "x")}, {"threshold": threshold})


@layer
def elu(x: Variable, alpha: float = 1.0, name: str | None = None) -> Variable:
    """x, or alpha * (exp(x) - 1) below 0."""
    helper = LayerHelper("elu", name)
    return helper.add("elu", {"X": helper.check_input(x, "x")}, {"alpha": alpha})


@layer
def gelu(x: Variable, approximate: bool = False) -> Variable:
    """x times the share of a normal distribution below x."""
    helper = LayerHelper("gelu")
    return helper.add("gelu", {"X": helper.check_input(x, "x")}, {"approximate": approximate})


@layer
def hard_sigmoid(
    x: Variable, slope: float = 0.2, offset: float = 0.5, name: str | None = None
) -> Variable:
    """slope * x + offset, into 0..1."""
    helper = LayerHelper("hard_sigmoid", name)
    attrs = {"slope": slope, "offset": offset}
    return helper.add("hard_sigmoid", {"X": helper.check_input(x, "x")}, attrs)


@layer
def swish(x: Variable, beta: float = 1.0, name: str | None = None) -> Variable:
    """x * sigmoid(beta * x)."""
    helper = LayerHelper("swish", name)
    return helper.add("swish", {"X": helper.check_input(x, "x")}, {"beta": beta})


@layer
def brelu(
    x: Variable, t_min: float = 0.0, t_max: float = 24.0, name: str | None = None
) -> Variable:
    """x into t_min..t_max."""
    helper = LayerHelper("brelu", name)
    attrs = {"t_min": t_min, "t_max": t_max}
    return helper.add("brelu", {"X": helper.check_input(x, "x")}, attrs)


@layer
def soft_relu(x: Variable, threshold: float = 40.0, name: str | None = None) -> Variable:
    """log(1 + exp(x)), x into -threshold..threshold first."""
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
    """Zeros in the place of some elements, in training.

    dropout_implementation: "downgrade_in_infer" makes all elements smaller when testing,
        "upscale_in_train" those that are left larger when training.
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
