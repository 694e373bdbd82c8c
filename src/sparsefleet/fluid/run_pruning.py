"""Runs of a part of a program: what some fetches, or the updates of one optimizer, need."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sparsefleet.fluid.framework import Operator, Program

__all__ = ["pruned_for_run", "updates_in"]


def updates_in(fetch_list: Any) -> list[Operator]:
    """The update operators in what `minimize` returned, where that is in a fetch_list."""
    if not isinstance(fetch_list, (list, tuple)):
        return []
    return [
        op
        for item in fetch_list
        if isinstance(item, tuple) and item and isinstance(item[0], list)
        for op in item[0]
        if isinstance(op, Operator)
    ]


def pruned_for_run(
    program: Program, fetches: Sequence[str], updates: Collection[Operator]
) -> Program:
    """A copy with the operators that the fetches and these updates need, and no other updates."""
    wanted = set(fetches)
    ops = program.global_block().ops
    kept: list[int] = []
    for index in reversed(range(len(ops))):
        op = ops[index]
        if op.role == "optimize":
            is_kept = op in updates
        else:
            is_kept = bool(wanted.intersection(op.output_arg_names))
        if is_kept:
            kept.append(index)
            wanted.update(op.input_arg_names)
            wanted.update(op.attrs["sources"] if op.type == "backward" else ())
    made = program.clone()
    copies = made.global_block().ops
    made.global_block().ops = [copies[index] for index in reversed(kept)]
    made.changed()
    return made
