"""Element-wise arithmetic, comparison and logic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.lowering.registry import (
    SAME_FLOATS,
    Shape,
    ShapeRule,
    common_shape,
    op,
    same_size,
)
from sparsefleet.fluid.operators.layer_helper import LayerHelper, layer

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
    "equal",
    "greater_equal",
    "greater_than",
    "increment",
    "less_equal",
    "less_than",
    "logical_and",
    "logical_or",
    "logical_xor",
    "not_equal",
    "pow",
    "scale",
    "sum",
    "sums",
]

Tensor = torch.Tensor


def fit_second(x: Tensor, y: Tensor, axis: int) -> Tensor:
    """Insert axes of size 1 into `y` so that its axes align with `x`'s from `axis` on.

    axis: -1 aligns the last axes, as in NumPy.

    >>> fit_second(torch.zeros(2, 3, 4), torch.zeros(3), axis=1).shape
    torch.Size([1, 3, 1])
    """
    if axis == -1 or y.dim() >= x.dim():
        return y
    sizes = list(y.shape)
    while len(sizes) > 1 and sizes[-1] == 1:  # Fluid accepts this
        sizes.pop()
    behind = x.dim() - axis - len(sizes)
    if behind < 0:
        raise ValueError(f"axis {axis} leaves too few axes in {list(x.shape)} to match {sizes}")
    return y.reshape([1] * axis + sizes + [1] * behind)


def broadcast(x: Shape, y: Shape, axis: int = -1) -> Shape:
    """Return the shape of an element-wise result. The shorter shape aligns with the longer shape
    from `axis` on.

    >>> broadcast((-1, 3, 4), (3,), 1), broadcast((-1, 10), (5, 1))
    ((-1, 3, 4), (5, 10))
    """
    longer, shorter = (x, y) if len(x) >= len(y) else (y, x)
    sizes = list(shorter)
    if axis >= 0:
        while axis + len(sizes) > len(longer) and len(sizes) > 1 and sizes[-1] == 1:
            sizes.pop()
    begin = len(longer) - len(sizes) if axis < 0 else axis
    if begin < 0 or begin + len(sizes) > len(longer):
        raise ValueError(f"axis {axis} leaves too few dimensions of {list(longer)} for {sizes}")
    made = list(longer)
    for place, size in enumerate(sizes, begin):
        other = longer[place]
        if 1 in (size, other):
            made[place] = other if size == 1 else size
        elif size == 0 or other == 0:
            made[place] = 0
        else:
            made[place] = same_size(other, size)
    return tuple(made)


def _broadcast_shape(x: Shape, y: Shape, **attrs: Any) -> list[Shape]:
    return [broadcast(x, y, attrs.get("axis", -1))]


_BROADCAST = ShapeRule(_broadcast_shape)
_TRUTH_VALUES = ShapeRule(_broadcast_shape, ("bool",))


def _binary_op(type: str, function: Callable[[Tensor, Tensor], Tensor]) -> None:
    @op(type, "X Y", shape=_BROADCAST)
    def run(x: Tensor, y: Tensor, *, axis: int = -1) -> Tensor:
        return function(x, fit_second(x, y, axis))


_binary_op("elementwise_add", torch.add)
_binary_op("elementwise_sub", torch.sub)
_binary_op("elementwise_mul", torch.mul)
# Where elements are equal, the gradient goes to the second input.
_binary_op("elementwise_max", lambda x, y: torch.where(x > y, x, y))
_binary_op("elementwise_min", lambda x, y: torch.where(x < y, x, y))
_binary_op("elementwise_pow", torch.pow)
_binary_op("elementwise_floordiv", lambda x, y: torch.div(x, y, rounding_mode="trunc"))
_binary_op(
    "elementwise_mod",
    lambda x, y: torch.remainder(x, y) if x.is_floating_point() else torch.fmod(x, y),
)


@op("elementwise_div", "X Y", shape=_BROADCAST)
def elementwise_div_op(x: Tensor, y: Tensor, *, axis: int = -1) -> Tensor:
    y = fit_second(x, y, axis)
    return x / y if x.is_floating_point() else torch.div(x, y, rounding_mode="trunc")


def _sum_shape(shapes: list[Shape], **attrs: Any) -> list[Shape] | None:
    del attrs
    known = [shape for shape in shapes if shape]
    return [common_shape(known)] if known and len(known) == len(shapes) else None


@op("sum", "X*", shape=ShapeRule(_sum_shape))
def add_all(tensors: list[Tensor]) -> Tensor:
    total = tensors[0]
    for tensor in tensors[1:]:
        total = total + tensor
    return total.clone() if len(tensors) == 1 else total


@op("scale", "X ScaleTensor?", shape=SAME_FLOATS)
def scale_op(
    x: Tensor,
    scale_tensor: Tensor | None,
    *,
    scale: float = 1.0,
    bias: float = 0.0,
    bias_after_scale: bool = True,
) -> Tensor:
    factor: Any = scale if scale_tensor is None else scale_tensor.detach().to(x.dtype)
    if not x.is_floating_point():
        factor, bias = (int(scale) if scale_tensor is None else factor), int(bias)
    made: Tensor = x * factor + bias if bias_after_scale else (x + bias) * factor
    return made


@op("clip", "X Min? Max?", shape=SAME_FLOATS)
def clip_op(
    x: Tensor, low: Tensor | None = None, high: Tensor | None = None, *, min: float, max: float
) -> Tensor:
    x = x.clamp(min, max) if low is None else x.clamp(max=max).maximum(low.to(x.dtype))
    return x if high is None else x.minimum(high.to(x.dtype))


@op("pow", "X FactorTensor?", shape=SAME_FLOATS)
def power(x: Tensor, factor_tensor: Tensor | None, *, factor: float = 1.0) -> Tensor:
    return x.pow(factor if factor_tensor is None else factor_tensor.detach())


@op("increment", "X", shape=ShapeRule(lambda x, **_: [x]))
def increment_op(x: Tensor, *, step: float = 1.0) -> Tensor:
    return x + (step if x.is_floating_point() else int(step))


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
    """Return x + y; y's axes align with x's from `axis` on, or at the end if `axis` is -1."""
    return _binary("elementwise_add", x, y, axis, act, name)


@layer
def elementwise_sub(
    x: Variable, y: Variable, axis: int = -1, act: str | None = None, name: str | None = None
) -> Variable:
    """Return x - y; see `elementwise_add`."""
    return _binary("elementwise_sub", x, y, axis, act, name)


@layer
def elementwise_mul(
    x: Variable, y: Variable, axis: int = -1, act: str | None = None, name: str | None = None
) -> Variable:
    """Return x * y; see `elementwise_add`."""
    return _binary("elementwise_mul", x, y, axis, act, name)


@layer
def elementwise_div(
    x: Variable, y: Variable, axis: int = -1, act: str | None = None, name: str | None = None
) -> Variable:
    """Return x / y; see `elementwise_add`."""
    return _binary("elementwise_div", x, y, axis, act, name)


@layer
def elementwise_max(
    x: Variable, y: Variable, axis: int = -1, act: str | None = None, name: str | None = None
) -> Variable:
    """Return the larger element; see `elementwise_add`."""
    return _binary("elementwise_max", x, y, axis, act, name)


@layer
def elementwise_min(
    x: Variable, y: Variable, axis: int = -1, act: str | None = None, name: str | None = None
) -> Variable:
    """Return the smaller element; see `elementwise_add`."""
    return _binary("elementwise_min", x, y, axis, act, name)


@layer
def elementwise_pow(
    x: Variable, y: Variable, axis: int = -1, act: str | None = None, name: str | None = None
) -> Variable:
    """Return x to the power of y; see `elementwise_add`."""
    return _binary("elementwise_pow", x, y, axis, act, name)


@layer
def elementwise_mod(
    x: Variable, y: Variable, axis: int = -1, act: str | None = None, name: str | None = None
) -> Variable:
    """Return x modulo y; see `elementwise_add`."""
    return _binary("elementwise_mod", x, y, axis, act, name)


@layer
def elementwise_floordiv(
    x: Variable, y: Variable, axis: int = -1, act: str | None = None, name: str | None = None
) -> Variable:
    """Return x divided by y, rounded down; see `elementwise_add`."""
    return _binary("elementwise_floordiv", x, y, axis, act, name)


@layer
def sums(input: Variable | Sequence[Variable], out: Variable | None = None) -> Variable:
    """Return the sum of variables of the same shape."""
    helper = LayerHelper("sum")
    out = helper.new_variable() if out is None else out
    inputs = [input] if isinstance(input, Variable) else list(input)
    helper.append_op("sum", {"X": inputs}, {"Out": out})
    return out


def sum(x: Variable | Sequence[Variable]) -> Variable:
    """Return the sum of variables of the same shape."""
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
    """Return x * scale + bias, or (x + bias) * scale."""
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
    """Clip each element to min..max."""
    helper = LayerHelper("clip", name)
    attrs = {"min": float(min), "max": float(max)}
    return helper.add("clip", {"X": helper.check_input(x, "x")}, attrs)


@layer
def pow(x: Variable, factor: float | Variable = 1.0, name: str | None = None) -> Variable:
    """Raise each element to a power."""
    helper = LayerHelper("pow", name)
    inputs = {"X": helper.check_input(x, "x")}
    if isinstance(factor, Variable):
        return helper.add("pow", {**inputs, "FactorTensor": factor})
    return helper.add("pow", inputs, {"factor": float(factor)})


@layer
def increment(x: Variable, value: float = 1.0, in_place: bool = True) -> Variable:
    """Add a number to x; `in_place` changes x itself."""
    helper = LayerHelper("increment")
    out = helper.check_input(x, "x") if in_place else helper.new_variable()
    helper.append_op("increment", {"X": x}, {"Out": out}, {"step": float(value)})
    return out


COMPARISONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "equal": torch.eq,
    "greater_equal": torch.ge,
    "greater_than": torch.gt,
    "less_equal": torch.le,
    "less_than": torch.lt,
    "logical_and": torch.logical_and,
    "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor,
    "not_equal": torch.ne,
}
"""Operators on two tensors."""


def _register(type: str, function: Callable[[Tensor, Tensor], Tensor]) -> None:
    @op(type, "X Y", shape=_TRUTH_VALUES)
    def run(x: Tensor, y: Tensor, *, axis: int = -1) -> Tensor:
        return function(x, fit_second(x, y, axis))


for _type, _function in COMPARISONS.items():
    _register(_type, _function)


@op("where", "Condition X Y")
def where(condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return torch.where(condition, x, y)


def _append(
    type: str, x: Variable, y: Variable, out: Variable | None, name: str | None
) -> Variable:
    helper = LayerHelper(type, name)
    result = helper.new_variable("bool", stop_gradient=True) if out is None else out
    inputs = {"X": helper.check_input(x, "x"), "Y": helper.check_input(y, "y")}
    helper.append_op(type, inputs, {"Out": result})
    return result


def _named(type: str, call: Callable[..., Variable]) -> Callable[..., Variable]:
    call.__name__ = call.__qualname__ = type
    call.__doc__ = f"Return {type.replace('_', ' ')}, element by element: bool."
    return layer(call)


def _comparison(type: str) -> Callable[..., Variable]:
    def call(x: Variable, y: Variable, cond: Variable | None = None) -> Variable:
        return _append(type, x, y, cond, None)

    return _named(type, call)


def _logical(type: str) -> Callable[..., Variable]:
    def call(
        x: Variable, y: Variable, out: Variable | None = None, name: str | None = None
    ) -> Variable:
        return _append(type, x, y, out, name)

    return _named(type, call)


@layer
def less_than(
    x: Variable, y: Variable, force_cpu: bool | None = None, cond: Variable | None = None
) -> Variable:
    """Return whether x is less than y, element by element: bool."""
    del force_cpu
    return _append("less_than", x, y, cond, None)


equal = _comparison("equal")
greater_equal = _comparison("greater_equal")
greater_than = _comparison("greater_than")
less_equal = _comparison("less_equal")
logical_and = _logical("logical_and")
logical_or = _logical("logical_or")
logical_xor = _logical("logical_xor")
not_equal = _comparison("not_equal")
