"""Arithmetic of two variables."""

from __future__ import annotations

from collections.abc import Sequence

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.layer_helper import LayerHelper, layer

__all__ = [
    "clip",
    "elementwise_add",
    "elementwise_div",
    "elementwise_floordiv",
    "elementwise_max",
    "elementwise_min",
    "elementwise_mod",
    "elementwise_mul",
    "elementwise_pow",
    "elementwise_sub",
    "increment",
    "pow",
    "scale",
    "sum",
    "sums",
]


def _binary(
    type: str, x: Variable, y: Variable, axis: int, act: str | None, name: str | None
) -> Variable:
    helper = LayerHelper(type, name)
    inputs = {"X": helper.check_input(x, "x"), "Y": helper.check_input(y, "y")}
    return helper.activate(helper.add(type, inputs, {"axis": axis}), act)


@layer
def elementwise_add(
    x: Variable, y: Variable, axis: int = -1, act: str | None = None, name: str | None = None
) -> Variable:
    """x + y; the sizes of y meet those of x from `axis` on, or at the end with -1."""
    return _binary("elementwise_add", x, y, axis, act, name)


@layer
def elementwise_sub(
    x: Variable, y: Variable, axis: int = -1, act: str | None = None, name: str | None = None
) -> Variable:
    """x - y; see `elementwise_add`."""
    return _binary("elementwise_sub", x, y, axis, act, name)


@layer
def elementwise_mul(
    x: Variable, y: Variable, axis: int = -1, act: str | None = None, name: str | None = None
) -> Variable:
    """x * y; see `elementwise_add`."""
    return _binary("elementwise_mul", x, y, axis, act, name)


@layer
def elementwise_div(
    x: Variable, y: Variable, axis: int = -1, act: str | None = None, name: str | None = None
) -> Variable:
    """x / y; see `elementwise_add`."""
    return _binary("elementwise_div", x, y, axis, act, name)


@layer
def elementwise_max(
    x: Variable, y: Variable, axis: int = -1, act: str | None = None, name: str | None = None
) -> Variable:
    """The larger one; see `elementwise_add`."""
    return _binary("elementwise_max", x, y, axis, act, name)


@layer
def elementwise_min(
    x: Variable, y: Variable, axis: int = -1, act: str | None = None, name: str | None = None
) -> Variable:
    """The smaller one; see `elementwise_add`."""
    return _binary("elementwise_min", x, y, axis, act, name)


@layer
def elementwise_pow(
    x: Variable, y: Variable, axis: int = -1, act: str | None = None, name: str | None = None
) -> Variable:
    """x to the power of y; see `elementwise_add`."""
    return _binary("elementwise_pow", x, y, axis, act, name)


@layer
def elementwise_mod(
    x: Variable, y: Variable, axis: int = -1, act: str | None = None, name: str | None = None
) -> Variable:
    """What is left of x by y; see `elementwise_add`."""
    return _binary("elementwise_mod", x, y, axis, act, name)


@layer
def elementwise_floordiv(
    x: Variable, y: Variable, axis: int = -1, act: str | None = None, name: str | None = None
) -> Variable:
    """How often y goes into x; see `elementwise_add`."""
    return _binary("elementwise_floordiv", x, y, axis, act, name)


@layer
def sums(input: Variable | Sequence[Variable], out: Variable | None = None) -> Variable:
    """The sum of variables of one shape."""
    helper = LayerHelper("sum")
    out = helper.new_variable() if out is None else out
    inputs = [input] if isinstance(input, Variable) else list(input)
    helper.append_op("sum", {"X": inputs}, {"Out": out})
    return out


def sum(x: Variable | Sequence[Variable]) -> Variable:
    """The sum of variables of one shape."""
    return sums(x)


@layer
def scale(
    x: Variable,
    scale: float | Variable = 1.0,
    bias: float = 0.0,
    bias_after_scale: bool = True,
    act: str | None = None,
    name: str | None = None,
) -> Variable:
    """x * scale + bias, or (x + bias) * scale."""
    helper = LayerHelper("scale", name)
    inputs = {"X": helper.check_input(x, "x")}
    attrs: dict[str, float] = {"bias": float(bias), "bias_after_scale": bias_after_scale}
    if isinstance(scale, Variable):
        inputs["ScaleTensor"] = scale
    else:
        attrs["scale"] = float(scale)
    return helper.activate(helper.add("scale", inputs, attrs), act)


@layer
def clip(x: Variable, min: float, max: float, name: str | None = None) -> Variable:
    """Each element into min..max."""
    helper = LayerHelper("clip", name)
    attrs = {"min": float(min), "max": float(max)}
    return helper.add("clip", {"X": helper.check_input(x, "x")}, attrs)


@layer
def pow(x: Variable, factor: float | Variable = 1.0, name: str | None = None) -> Variable:
    """Each element to a power."""
    helper = LayerHelper("pow", name)
    inputs = {"X": helper.check_input(x, "x")}
    if isinstance(factor, Variable):
        return helper.add("pow", {**inputs, "FactorTensor": factor})
    return helper.add("pow", inputs, {"factor": float(factor)})


@layer
def increment(x: Variable, value: float = 1.0, in_place: bool = True) -> Variable:
    """x plus a number; `in_place`: x itself has that value from then on."""
    helper = LayerHelper("increment")
    out = helper.check_input(x, "x") if in_place else helper.new_variable()
    helper.append_op("increment", {"X": x}, {"Out": out}, {"step": float(value)})
    return out
