"""Truth values."""

from __future__ import annotations

from collections.abc import Callable

import torch

from sparsefleet.fluid.lowering.registry import op
from sparsefleet.fluid.ops.elementwise import fit_second

Tensor = torch.Tensor

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
"""Operators of two tensors."""


def _register(type: str, function: Callable[[Tensor, Tensor], Tensor]) -> None:
    @op(type, "X Y")
    def run(x: Tensor, y: Tensor, *, axis: int = -1) -> Tensor:
        return function(x, fit_second(x, y, axis))


for _type, _function in COMPARISONS.items():
    _register(_type, _function)


@op("where", "Condition X Y")
def where(condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return torch.where(condition, x, y)
