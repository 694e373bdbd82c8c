"""Which operators a run has to execute."""

from __future__ import annotations

from collections.abc import Sequence

from sparsefleet.fluid.framework import Block, Operator
from sparsefleet.fluid.lowering.shapes import operator_def

__all__ = ["needed_operators"]


def needed_operators(block: Block, fetches: Sequence[str]) -> list[Operator]:
    """Those that the fetches need, that change what is kept, or that act outside.

    Fluid executes all operators. The others have no effect that anybody could see.
    """
    variables = block.visible_vars()
    wanted = set(fetches)
    kept = []
    for op in reversed(block.ops):
        if (
            _has_effect(block, op)
            or wanted.intersection(op.output_arg_names)
            or any(variables[name].persistable for name in op.output_arg_names)
        ):
            kept.append(op)
            wanted.update(op.input_arg_names)
            wanted.update(op.attrs["sources"] if op.type == "backward" else ())
    return kept[::-1]


def _has_effect(block: Block, op: Operator) -> bool:
    if op.has_sub_block:
        body = block.program.blocks[op.attrs["sub_block"]]
        return any(_has_effect(body, inner) for inner in body.ops)
    return operator_def(op).has_effect
