"""A program as a worker runs it: the updates give way to the sending of gradients."""

from __future__ import annotations

from collections.abc import Sequence

from sparsefleet.fluid.distributed.program_role import ProgramRole
from sparsefleet.fluid.distributed.update_rules import Update
from sparsefleet.fluid.framework import Operator, Program

__all__ = ["rewrite_for_worker"]


def rewrite_for_worker(
    program: Program, startup: Program, updates: Sequence[Update], role: ProgramRole
) -> None:
    """Changes both programs in place.

    The program hands gradients over where it updated parameters. The start-up program no longer
    fills what servers hold, but fetches it.
    """
    block = program.global_block()
    block.ops = [op for op in block.ops if op.role != "optimize"]
    sent = {update.gradient for update in updates}
    block.ops = _without_unused(block.ops, sent)
    with program.role_guard("optimize"):
        block.append_op(
            "send",
            {"X": [update.gradient for update in updates]},
            {},
            {"parameters": [update.parameter.name for update in updates]},
        )
    program._distributed = role
    served = {parameter.name for parameter in program.all_parameters()}
    fetched = {parameter.name for parameter in program.all_parameters() if not parameter.is_table}
    kept = {name for update in updates for name in (*update.state.values(), *update.powers)}
    first = startup.global_block()
    first.ops = [op for op in first.ops if not served | kept >= set(op.output_arg_names)]
    first.append_op("recv", {}, {"Out": sorted(fetched & first.vars.keys())})
    startup._distributed = role
    program.changed()
    startup.changed()


def _without_unused(ops: Sequence[Operator], sent: set[str]) -> list[Operator]:
    """Without weight decay that only the updates wanted: servers do it."""
    wanted = set(sent)
    kept: list[Operator] = []
    for op in reversed(ops):
        made = set(op.output_arg_names)
        if op.type != "decay_gradient" or made & wanted:
            kept.append(op)
            wanted.update(op.input_arg_names)
    return kept[::-1]
