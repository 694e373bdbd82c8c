"""Adds operators whose work is a block of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sparsefleet.fluid.framework import Block, Variable

__all__ = ["append_with_body", "outer_names"]


def outer_names(block: Block) -> tuple[list[str], list[str]]:
    """Variables of the blocks around that this one reads, and those that it writes."""
    reads = [name for op in block.ops for name in op.input_arg_names if name not in block.vars]
    writes = [name for op in block.ops for name in op.output_arg_names if name not in block.vars]
    return list(dict.fromkeys(reads)), list(dict.fromkeys(writes))


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
