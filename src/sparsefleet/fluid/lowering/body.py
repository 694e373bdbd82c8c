"""Inner blocks of a program, as functions of the variables in enclosing blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from sparsefleet.fluid.framework import Operator
from sparsefleet.fluid.framework.call_site import EnforceNotMet, site_prefix
from sparsefleet.fluid.lowering.lowered import Lod

__all__ = [
    "Body",
    "Frame",
    "Held",
    "RunBody",
    "check_finite",
    "copied",
    "detached",
    "first_lod",
    "lod_of_output",
    "read_first",
    "run_with_body",
    "tracked",
    "with_clipped_gradient",
]

Held = tuple[Any, Lod]
"""A value and its LoD. The value is a tensor, an array (a list of Held), a parameter in a table, or
None if there is none yet.
"""

Frame = dict[str, Held]
"""Variables by name."""

RunBody = Callable[[Mapping[str, Held]], Frame]

_NOTHING: Held = (None, ())


@dataclass(frozen=True, slots=True)
class Body:
    """A compiled block.

    Its arguments are the run's table rows, the values of its inputs, and their LoDs.
    """

    module: fx.GraphModule
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def __call__(self, rows: Any, frame: Mapping[str, Held]) -> Frame:
        """Run the block; return its outputs. Inputs that are not in `frame` have no value."""
        held = [frame.get(name, _NOTHING) for name in self.inputs]
        values, lods = self.module.forward(rows, *[x[0] for x in held], *[x[1] for x in held])
        return dict(zip(self.outputs, zip(values, lods, strict=True), strict=True))


def run_with_body(
    function: Callable[..., list[Held]], body: Body, names: Sequence[str]
) -> Callable[..., list[Held]]:
    """Return a graph node's function for an operator that has a body.

    It takes the run's rows and the values of the variables in `names`.
    """

    def call(rows: Any, held: Sequence[Held], **settings: Any) -> list[Held]:
        def run_body(frame: Mapping[str, Held]) -> Frame:
            return body(rows, frame)

        return function(dict(zip(names, held, strict=True)), run_body, **settings)

    return call


def read_first(ops: Sequence[Operator], results: Sequence[str]) -> tuple[str, ...]:
    """Return the variables that are read before any of these operators sets them.

    Their values come from enclosing blocks.
    """
    found: dict[str, None] = {}
    made: set[str] = set()
    for op in ops:
        found.update(dict.fromkeys(name for name in op.input_arg_names if name not in made))
        made.update(op.output_arg_names)
    found.update(dict.fromkeys(name for name in results if name not in made))
    return tuple(found)


def detached(value: Any) -> Any:
    """Return the value, or all elements of an array, without autograd history."""
    if isinstance(value, torch.Tensor):
        return value.detach()
    if isinstance(value, list):
        return [(detached(item), lod) for item, lod in value]
    return value


def tracked(value: Any) -> Any:
    """Return the value, made to require gradients if it is a floating-point tensor."""
    if isinstance(value, torch.Tensor) and value.is_floating_point() and not value.requires_grad:
        return value.detach().requires_grad_()
    return value


def with_clipped_gradient(value: Any, low: float, high: float) -> Any:
    """Return the value, with its gradient clipped to low..high."""
    if isinstance(value, torch.Tensor) and value.requires_grad:
        value.register_hook(lambda gradient: gradient.clamp(low, high))  # type: ignore[no-untyped-call]
    return value


def copied(gradient: Any) -> Any:
    """Return a copy of a gradient in its own memory: a tensor, rows (keys, values), or None."""
    if isinstance(gradient, torch.Tensor):
        return gradient.detach().clone()
    return gradient if gradient is None else tuple(part.copy() for part in gradient)


def first_lod(*lods: Lod) -> Lod:
    """Return the first LoD that is not empty."""
    return next(filter(None, lods), ())


def lod_of_output(lod: Lod | list[Lod], place: int) -> Lod:
    """Return the LoD of one output, given a single LoD for all outputs or a list of LoDs."""
    return lod[place] if isinstance(lod, list) else lod


def check_finite(op: Operator, result: Any) -> None:
    """Raise EnforceNotMet if an operator's result is not finite; for FLAGS_check_nan_inf.

    Raises EnforceNotMet, not a subclass, because Fluid programs compare exception types.
    """
    for value in result if isinstance(result, (list, tuple)) else [result]:
        if isinstance(value, (list, tuple)):
            check_finite(op, value)
        elif isinstance(value, torch.Tensor) and not bool(torch.isfinite(value).all()):
            names = ", ".join(op.output_arg_names)
            raise EnforceNotMet(
                f"{site_prefix(op.site)}{op.type}: find nan or inf in its output {names} of shape "
                f"{list(value.shape)}; FLAGS_check_nan_inf enables this check"
            )
