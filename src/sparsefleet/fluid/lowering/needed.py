"""Which operators a run has to execute."""

from __future__ import annotations

from collections.abc import Sequence

from sparsefleet.fluid.framework import Operator, Program
from sparsefleet.fluid.lowering.shapes import operator_def

__all__ = ["needed_operators"]


def needed_operators(program: Program, fetches: Sequence[str]) -> list[Operator]:
    """Those that the fetches need, that change what is kept, or that act outside.

    Fluid executes all operators. The others have no effect that anybody could see.
    """
    variables = program.global_block().vars
    wanted = set(fetches)
    kept = []
    for op in reversed(program.global_block().ops):
        if (
            operator_def(op).has_effect
            or wanted.intersection(op.output_arg_names)
            or any(variables[name].persistable for name in op.output_arg_names)
        ):
            kept.append(op)
            wanted.update(op.input_arg_names)
            wanted.update(op.attrs["sources"] if op.type == "backward" else ())
    return kept[::-1]
