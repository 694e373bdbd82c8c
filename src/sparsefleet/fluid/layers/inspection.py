"""Looking at tensors while a program runs, and functions of Python within it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.layer_helper import LayerHelper, layer
from sparsefleet.fluid.ops.inspection import register_function

__all__ = ["Print", "is_empty", "py_func"]

_printers = itertools.count()


@layer
def is_empty(x: Variable, cond: Variable | None = None) -> Variable:
    """Whether x has no elements: bool[1]."""
    helper = LayerHelper("is_empty")
    out = helper.new_variable("bool", stop_gradient=True) if cond is None else cond
    helper.append_op("is_empty", {"X": helper.check_input(x, "x")}, {"Out": out})
    out.dtype = "bool"
    return out


@layer
def Print(  # noqa: N802  Fluid's name
    input: Variable,
    first_n: int = -1,
    message: str | None = None,
    summarize: int = 20,
    print_tensor_name: bool = True,
    print_tensor_type: bool = True,
    print_tensor_shape: bool = True,
    print_tensor_lod: bool = True,
    print_phase: str = "both",
) -> Variable:
    """The variable itself; whenever it is computed, it is printed.

    first_n: only so many times; -1: always. summarize: so many numbers; -1: all.
    print_phase: forward, backward (its gradient) or both.
    """
    helper = LayerHelper(f"print_{input.name}" if isinstance(input, Variable) else "print")
    if print_phase.lower() not in ("forward", "backward", "both"):
        raise helper.refuse(f"print_phase is forward, backward or both, got {print_phase!r}")
    out = helper.new_variable(helper.check_input(input).dtype, lod_level=input.lod_level)
    shown = {
        "name": print_tensor_name,
        "type": print_tensor_type,
        "shape": print_tensor_shape,
        "lod": print_tensor_lod,
    }
    attrs = {
        "printer": next(_printers),
        "name": input.name,
        "gradient_name": out.grad_name,
        "message": message or "",
        "first_n": first_n,
        "summarize": summarize,
        "show": [what for what, wanted in shown.items() if wanted],
        "phase": print_phase.upper(),
    }
    helper.append_op("print", {"In": input}, {"Out": out}, attrs)
    return out


@layer
def py_func(
    func: Callable[..., Any],
    x: Variable | Sequence[Variable] | None,
    out: Variable | Sequence[Variable] | None,
    backward_func: Callable[..., Any] | None = None,
    skip_vars_in_backward_input: Variable | Sequence[Variable] | None = None,
) -> Any:
    """`out` is what `func` returns for x, both as LoDTensors; it is run whenever the program is.

    out: variables made before, by `create_variable` of a block, with shape and type.
    backward_func: takes x, out and the gradients of out, without those to be skipped, and returns
        the gradients of x; without it nothing flows back.
    """
    helper = LayerHelper("py_func")
    inputs, outputs = _listed(x), _listed(out)
    if not callable(func) or (backward_func is not None and not callable(backward_func)):
        raise TypeError(f"layers.py_func: func and backward_func are functions, got {func!r}")
    for variable in (*inputs, *outputs):
        helper.check_input(variable, "each of x and out")
    skipped = [variable.name for variable in _listed(skip_vars_in_backward_input)]
    names = [variable.name for variable in (*inputs, *outputs)]
    unknown = sorted(set(skipped) - set(names))
    if unknown:
        raise ValueError(
            f"layers.py_func: skip_vars_in_backward_input has {unknown}, not in x or out"
        )
    attrs = {
        "forward": register_function(func),
        "backward": None if backward_func is None else register_function(backward_func),
        "dtypes": [variable.dtype for variable in outputs],
        "skipped": [place for place, name in enumerate(names) if name in skipped],
    }
    helper.append_op("py_func", {"X": inputs}, {"Out": outputs}, attrs)
    return out


def _listed(variables: Variable | Sequence[Variable] | None) -> list[Variable]:
    if variables is None:
        return []
    return [variables] if isinstance(variables, Variable) else list(variables)
