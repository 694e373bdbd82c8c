"""Looking at tensors while a program runs, and functions of Python within it."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from sparsefleet.fluid.lod_tensor import LoDTensor
from sparsefleet.fluid.lowering.lowered import Lod
from sparsefleet.fluid.lowering.registry import op

__all__ = ["register_function"]

Tensor = torch.Tensor

_LETTERS = {
    torch.bool: "b",
    torch.float32: "f",
    torch.float64: "d",
    torch.int32: "i",
    torch.int64: "l",
    torch.uint8: "h",
}
"""Fluid prints the compiler's names of types."""

_printed: Counter[tuple[int, str]] = Counter()


@op("is_empty", "X", lod="none", infer=lambda *_: [(1,)])
def is_empty(x: Tensor) -> Tensor:
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
    """x itself, printed in Fluid's form; on the way back, its gradient.

    printer: by whose number the times it was printed are counted. show: name, type, shape, lod.
    """

    def tell(value: Tensor, what: str) -> None:
        _printed[printer, what] += 1
        if first_n < 0 or _printed[printer, what] <= first_n:
            print(_text(value, what, lods[0], message, summarize, show), end="", flush=True)

    if phase in ("BOTH", "FORWARD"):
        tell(x, name)
    out = x.view_as(x)
    if phase in ("BOTH", "BACKWARD") and out.requires_grad:
        out.register_hook(lambda gradient: tell(gradient, gradient_name))  # type: ignore[no-untyped-call]
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
    """A number for a function, that an operator can name."""
    number = next(_numbers)
    _functions[number] = function
    return number


def _function(number: int) -> Callable[..., Any]:
    found = _functions.get(number)
    if found is None:
        raise ValueError(
            f"function {number} of py_func is not known here: programs with py_func run in the "
            "process that made them"
        )
    return found


@op("py_func", "X*", "Out*", lod="function", has_effect=True, infer=lambda *_, **__: [])
def py_func(
    values: list[Tensor],
    *,
    lods: list[Any],
    forward: int,
    backward: int | None = None,
    dtypes: list[str],
    skipped: list[int],
) -> tuple[list[Any], Lod]:
    """A function of Python over LoDTensors; `backward` takes inputs, outputs and gradients.

    skipped: numbers of inputs and outputs, counted together, that `backward` does not take.
    """
    types = [getattr(torch, name) for name in dtypes]
    call = _Call(_function(forward), backward, types, lods[0], skipped)
    made = _PyFunc.apply(call, *values)  # type: ignore[no-untyped-call]
    return [list(made)], ()


class _Call:
    """One call of a function and of its gradient."""

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
        made = _listed(self.function(*given))
        if len(made) != len(self.dtypes):
            raise ValueError(f"the function returned {len(made)} values, wanted {len(self.dtypes)}")
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
        found = _listed(_function(self.backward)(*given))
        if len(found) != count:
            raise ValueError(f"backward_func returned {len(found)} values, wanted {count}")
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


def _listed(made: Any) -> list[Any]:
    if made is None:
        return []
    return list(made) if isinstance(made, (list, tuple)) else [made]


def _tensor(value: Any) -> Tensor:
    if isinstance(value, LoDTensor):
        return value.tensor
    return value if isinstance(value, Tensor) else torch.from_numpy(np.array(value))
