"""Adds operators whose work is a block of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sparsefleet.fluid.framework import Block, ProgramError, Variable, call_site

__all__ = ["append_with_body", "moved_out", "outer_names"]


def outer_names(block: Block) -> tuple[list[str], list[str]]:
    """Variables of the blocks around that this one reads, and those that it writes."""
    reads = [name for op in block.ops for name in op.input_arg_names if name not in block.vars]
    writes = [name for op in block.ops for name in op.output_arg_names if name not in block.vars]
    return list(dict.fromkeys(reads)), list(dict.fromkeys(writes))


def moved_out(body: Block, variable: Variable) -> Variable:
    """The variable; if the body made it of what is outside, it is made there instead.

    So a memory can begin with `states[i]` although that is written within the step.
    """
    around = body.parent
    assert around is not None
    if variable.name not in body.vars:
        return variable
    makers = [op for op in body.ops if variable.name in op.output_arg_names]
    if len(makers) != 1:
        raise ProgramError.at(
            call_site(),
            f"variable '{variable.name}'",
            "what a memory begins with must be made outside of the steps",
        )
    for name in makers[0].input_arg_names:
        moved_out(body, body.visible_var(name))
    body.ops.remove(makers[0])
    around.ops.append(makers[0])
    for name in makers[0].output_arg_names:
        around.add_var(body.vars.pop(name))
    return variable


def append_with_body(
    type: str,
    body: Block,
    inputs: Mapping[str, Sequence[Variable]],
    attrs: Mapping[str, Any],
    outputs: Sequence[str] | None = None,
) -> None:
    """Adds the operator behind its finished body; by default its outputs are what that writes.

    What the body writes is an input, too: where it is not run, the value stays.
    """
    around = body.parent
    assert around is not None
    reads, writes = outer_names(body)
    results = writes if outputs is None else list(outputs)
    around.append_op(
        type,
        {"X": list(dict.fromkeys(reads + writes)), **inputs},
        {"Out": results},
        {"sub_block": body.idx, "results": results, **attrs},
    )
