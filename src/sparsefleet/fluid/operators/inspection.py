"""Print tensors while a program runs, and call Python functions from the program."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.framework.lod_tensor import LoDTensor
from sparsefleet.fluid.lowering.lowered import Lod
from sparsefleet.fluid.lowering.registry import op
from sparsefleet.fluid.operators.layer_helper import LayerHelper, layer

__all__ = ["Print", "is_empty", "py_func"]

Tensor = torch.Tensor

_LETTERS = {
    torch.bool: "b",
    torch.float32: "f",
    torch.float64: "d",
    torch.int32: "i",
    torch.int64: "l",
    torch.uint8: "h",
}
"""Type names in the C++ compiler's mangled form, which Fluid prints."""

_printed: Counter[tuple[int, str]] = Counter()


@op("is_empty", "X", lod="none", infer=lambda *_: [(1,)])
def is_empty_op(x: Tensor) -> Tensor:
    return torch.tensor([x.numel() == 0])


@op("print", "In", lod="function", has_effect=True, infer=lambda shape, **_: [shape])
def print_tensor(
    x: Tensor,
    *,
    lods: list[Any],
    printer: int,
    name: str,
    gradient_name: str,
    message: str = "",
    first_n: int = -1,
    summarize: int = 20,
    show: list[str],
    phase: str = "BOTH",
) -> tuple[Tensor, Lod]:
    """Return x and print it in Fluid's format; in the backward pass, print its gradient.

    printer: key of the print counter. show: any of name, type, shape, lod.
    """

    def show_tensor(value: Tensor, what: str) -> None:
        _printed[printer, what] += 1
        if first_n < 0 or _printed[printer, what] <= first_n:
            print(_text(value, what, lods[0], message, summarize, show), end="", flush=True)

    if phase in ("BOTH", "FORWARD"):
        show_tensor(x, name)
    out = x.view_as(x)
    if phase in ("BOTH", "BACKWARD") and out.requires_grad:
        out.register_hook(lambda gradient: show_tensor(gradient, gradient_name))  # type: ignore[no-untyped-call]
    return out, lods[0]


def _text(value: Tensor, name: str, lod: Lod, message: str, summarize: int, show: list[str]) -> str:
    lines = [f"{int(time.time())}\t{message}\tThe place is:CPUPlace"]
    if "name" in show:
        lines.append(f"Tensor[{name}]")
    if "shape" in show:
        lines.append(f"\tshape: [{''.join(f'{size},' for size in value.shape)}]")
    if "type" in show:
        lines.append(f"\tdtype: {_LETTERS.get(value.dtype, str(value.dtype))}")
    if "lod" in show and lod:
        levels = "".join(f"[ {','.join(map(str, level.tolist()))}, ]" for level in lod)
        lines.append(f"\tLoD: [{levels}]")
    numbers = value.detach().reshape(-1)
    numbers = numbers if summarize < 0 else numbers[:summarize]
    data = "".join(f"{_number(number)}," for number in numbers.tolist())
    return "\n".join([*lines, f"\tdata: {data}\n"])


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(int(value))


_functions: dict[int, Callable[..., Any]] = {}
_numbers = itertools.count()


def register_function(function: Callable[..., Any]) -> int:
    """Register a function; return the number by which operators refer to it."""
    number = next(_numbers)
    _functions[number] = function
    return number


def _function(number: int) -> Callable[..., Any]:
    found = _functions.get(number)
    if found is None:
        raise ValueError(
            f"py_func's function {number} is unknown; a program with py_func can only run in the "
            "process that built it"
        )
    return found


@op("py_func", "X*", "Out*", lod="function", has_effect=True, infer=lambda *_, **__: [])
def py_func_op(
    values: list[Tensor],
    *,
    lods: list[Any],
    forward: int,
    backward: int | None = None,
    dtypes: list[str],
    skipped: list[int],
) -> tuple[list[Any], Lod]:
    """Call a Python function on LoDTensors; `backward` takes inputs, outputs and gradients.

    skipped: indices of inputs and outputs, counted together, that `backward` does not receive.
    """
    types = [getattr(torch, name) for name in dtypes]
    call = _Call(_function(forward), backward, types, lods[0], skipped)
    made = _PyFunc.apply(call, *values)  # type: ignore[no-untyped-call]
    return [list(made)], ()


class _Call:
    """One call to a user's function, and to its gradient function."""

    def __init__(
        self,
        function: Callable[..., Any],
        backward: int | None,
        dtypes: list[torch.dtype],
        lods: list[Lod],
        skipped: list[int],
    ) -> None:
        self.function = function
        self.backward = backward
        self.dtypes = dtypes
        self.lods = lods
        self.skipped = skipped

    def forward(self, values: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        given = [
            LoDTensor(value.detach(), [level.cpu().numpy() for level in lod])
            for value, lod in zip(values, self.lods, strict=True)
        ]
        made = _listed_op(self.function(*given))
        if len(made) != len(self.dtypes):
            raise ValueError(
                f"the function returned {len(made)} values, expected {len(self.dtypes)}"
            )
        pairs = zip(made, self.dtypes, strict=True)
        device = torch.get_default_device()
        return tuple(_tensor(value).to(device, dtype) for value, dtype in pairs)

    def gradients(
        self, kept: tuple[Tensor, ...], gradients: tuple[Tensor, ...], count: int
    ) -> list[Tensor | None]:
        if self.backward is None:
            return [None] * count
        taken = [value for place, value in enumerate(kept) if place not in self.skipped]
        given = [LoDTensor(value.detach()) for value in (*taken, *gradients)]
        found = _listed_op(_function(self.backward)(*given))
        if len(found) != count:
            raise ValueError(f"backward_func returned {len(found)} values, expected {count}")
        return [
            None if value is None else _tensor(value).to(gradients[0].device) for value in found
        ]


class _PyFunc(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _Call, *values: Tensor) -> Any:
        made = call.forward(values)
        ctx.call, ctx.count = call, len(values)
        ctx.save_for_backward(*values, *made)
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return None, *ctx.call.gradients(ctx.saved_tensors, gradients, ctx.count)


def _listed_op(made: Any) -> list[Any]:
    if made is None:
        return []
    return list(made) if isinstance(made, (list, tuple)) else [made]


def _tensor(value: Any) -> Tensor:
    if isinstance(value, LoDTensor):
        return value.tensor
    return value if isinstance(value, Tensor) else torch.from_numpy(np.array(value))


_printers = itertools.count()


@layer
def is_empty(x: Variable, cond: Variable | None = None) -> Variable:
    """Return whether x has no elements: bool[1]."""
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
    """Return the variable and print it whenever it is computed.

    first_n: number of times to print; -1 for always.
    summarize: number of values to print; -1 for all.
    print_phase: 'forward', 'backward' (prints the gradient) or 'both'.
    """
    helper = LayerHelper(f"print_{input.name}" if isinstance(input, Variable) else "print")
    if print_phase.lower() not in ("forward", "backward", "both"):
        raise helper.refuse(
            f"print_phase must be 'forward', 'backward' or 'both', got {print_phase!r}"
        )
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
    """Call `func` with x whenever the program runs, and store the result in `out`.

    The arguments and results of `func` are LoDTensors.

    out: existing variables with shape and type, created by a block's `create_variable`.
    backward_func: takes x, out and the gradients of out, except those to be skipped, and returns
    the gradients of x; without it, no gradient flows back.
    """
    helper = LayerHelper("py_func")
    inputs, outputs = _listed(x), _listed(out)
    if not callable(func) or (backward_func is not None and not callable(backward_func)):
        raise TypeError(f"layers.py_func: func and backward_func must be functions, got {func!r}")
    for variable in (*inputs, *outputs):
        helper.check_input(variable, "each item of x and out")
    skipped = [variable.name for variable in _listed(skip_vars_in_backward_input)]
    names = [variable.name for variable in (*inputs, *outputs)]
    unknown = sorted(set(skipped) - set(names))
    if unknown:
        raise ValueError(
            f"layers.py_func: skip_vars_in_backward_input contains {unknown}, which is not in x or "
            "out"
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
