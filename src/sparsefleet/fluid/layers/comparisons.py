"""Truth values of two variables."""

from __future__ import annotations

from collections.abc import Callable

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.layer_helper import LayerHelper, layer

__all__ = [
    "equal",
    "greater_equal",
    "greater_than",
    "less_equal",
    "less_than",
    "logical_and",
    "logical_or",
    "logical_xor",
    "not_equal",
]


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
    call.__doc__ = f"{type.replace('_', ' ')}, element by element: bool."
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
    """less than, element by element: bool."""
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
