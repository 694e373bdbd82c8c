"""Blocks within a program: functions of the variables around them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from sparsefleet.fluid.framework import Operator
from sparsefleet.fluid.lowering.lowered import Lod

__all__ = [
    "Body",
    "Frame",
    "Held",
    "RunBody",
    "detached",
    "first_lod",
    "read_first",
    "run_with_body",
]

Held = tuple[Any, Lod]
"""A value and its LoD. The value: a tensor, an array (a list of Held), a parameter in a table, or
None as long as there is none."""

Frame = dict[str, Held]
"""Variables by name."""

RunBody = Callable[[Mapping[str, Held]], Frame]

_NOTHING: Held = (None, ())


@dataclass(frozen=True, slots=True)
class Body:
    """A block made ready: it takes the rows of the run, then values, then their LoD."""

    module: fx.GraphModule
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def __call__(self, rows: Any, frame: Mapping[str, Held]) -> Frame:
        """The outputs for these variables; those not in `frame` have no value."""
        held = [frame.get(name, _NOTHING) for name in self.inputs]
        values, lods = self.module.forward(rows, *[x[0] for x in held], *[x[1] for x in held])
        return dict(zip(self.outputs, zip(values, lods, strict=True), strict=True))


def run_with_body(
    function: Callable[..., list[Held]], body: Body, names: Sequence[str]
) -> Callable[..., list[Held]]:
    """An operator with a body as a node calls it: with rows, and what `names` hold."""

    def call(rows: Any, held: Sequence[Held], **settings: Any) -> list[Held]:
        def run_body(frame: Mapping[str, Held]) -> Frame:
            return body(rows, frame)

        return function(dict(zip(names, held, strict=True)), run_body, **settings)

    return call


def read_first(ops: Sequence[Operator], results: Sequence[str]) -> tuple[str, ...]:
    """Variables whose value comes from outside: they are used before an operator makes them."""
    found: dict[str, None] = {}
    made: set[str] = set()
    for op in ops:
        found.update(dict.fromkeys(name for name in op.input_arg_names if name not in made))
        made.update(op.output_arg_names)
    found.update(dict.fromkeys(name for name in results if name not in made))
    return tuple(found)


def detached(value: Any) -> Any:
    """The value without its history; of an array, of each element."""
    if isinstance(value, torch.Tensor):
        return value.detach()
    if isinstance(value, list):
        return [(detached(item), lod) for item, lod in value]
    return value


def first_lod(*lods: Lod) -> Lod:
    """The first that is one."""
    return next(filter(None, lods), ())
