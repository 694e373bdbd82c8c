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


def _comparison(type: str) -> Callable[..., Variable]:
    def call(
        x: Variable,
        y: Variable,
        cond: Variable | None = None,
        name: str | None = None,
        force_cpu: bool | None = None,
        out: Variable | None = None,
    ) -> Variable:
        del force_cpu
        helper = LayerHelper(type, name)
        result = cond or out or helper.new_variable("bool", stop_gradient=True)
        inputs = {"X": helper.check_input(x, "x"), "Y": helper.check_input(y, "y")}
        helper.append_op(type, inputs, {"Out": result})
        return result

    call.__name__ = call.__qualname__ = type
    call.__doc__ = f"{type.replace('_', ' ')}, element by element: bool."
    return layer(call)


equal = _comparison("equal")
greater_equal = _comparison("greater_equal")
greater_than = _comparison("greater_than")
less_equal = _comparison("less_equal")
less_than = _comparison("less_than")
logical_and = _comparison("logical_and")
logical_or = _comparison("logical_or")
logical_xor = _comparison("logical_xor")
not_equal = _comparison("not_equal")
