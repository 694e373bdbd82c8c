"""Add operators that communicate with the other ranks to a program."""

from __future__ import annotations

from collections.abc import Sequence

from sparsefleet.errors import ConfigError
from sparsefleet.fluid.collective.ranks import Ranks
from sparsefleet.fluid.framework import Operator, Parameter, Program
from sparsefleet.fluid.framework.call_site import call_site
from sparsefleet.fluid.framework.operator import Role

__all__ = [
    "add_averaging",
    "add_broadcast",
    "add_exchange",
    "add_sync_batch_norm",
    "is_exchanged",
]


def add_broadcast(startup: Program, ranks: Ranks) -> None:
    """Make the startup program copy the first rank's values to all ranks."""
    block = startup.global_block()
    endpoints = list(ranks.role.worker_endpoints)
    attrs = {"rank": ranks.rank, "nranks": ranks.size, "endpoints": endpoints}
    block.append_op("c_comm_init", {}, {}, attrs)
    made = {name for op in block.ops for name in op.output_arg_names}
    kept = [name for name, found in block.vars.items() if found.persistable and name in made]
    if kept:
        block.append_op("c_broadcast", {"X": kept}, {"Out": kept}, {"root": 0})


def is_exchanged(program: Program) -> bool:
    """Return whether the program contains operators that exchange data with the other ranks."""
    kinds = ("average_over_ranks", "mean_over_ranks")
    return any(op.type in kinds for op in program.global_block().ops)


def add_exchange(program: Program, *, overlap: bool) -> None:
    """Average gradients over all ranks after each backward pass.

    overlap: send finished gradients while the backward pass computes the remaining gradients.
    """
    block = program.global_block()
    changed: list[Operator] = []
    for index, op in enumerate(block.ops):
        changed.append(op)
        if op.type == "backward":
            changed += _exchange_after(program, op, block.ops[index + 1 :])
    exchanges = [op for op in changed if op.type == "mean_over_ranks"]
    passes = sum(op.type == "backward" for op in changed)
    if overlap and passes == len(exchanges) == 1:
        dense = exchanges[0].attrs["parameters"]
        changed.insert(0, _operator("watch_gradients", {"X": dense}, {}, {"parameters": dense}))
    block.hold_ops(changed)


def _exchange_after(program: Program, op: Operator, later: Sequence[Operator]) -> list[Operator]:
    """Return the operators, if any, that exchange the gradients used after a backward pass."""
    used = {name for other in later for name in other.input_arg_names}
    dense: dict[str, str] = {}
    rows: dict[str, str] = {}
    for source, gradient in zip(op.attrs["sources"], op.output("Gradients"), strict=True):
        parameter = program.global_block().vars[source]
        if isinstance(parameter, Parameter) and gradient in used:
            (rows if parameter.is_table else dense)[source] = gradient
    if not dense and not rows:
        return []
    gradients = [*dense.values(), *rows.values()]
    attrs = {"parameters": list(dense), "tables": list(rows)}
    return [_operator("mean_over_ranks", {"X": gradients}, {"Out": gradients}, attrs)]


def add_averaging(program: Program, loss: str | None = None) -> None:
    """After an update, average parameters over all ranks when the schedule requires it.

    loss: name of the variable that controls an adaptive schedule.
    """
    block = program.global_block()
    for op in block.ops:
        if op.type == "push_table":
            raise ConfigError(
                f"local SGD averages whole parameters, but rows of '{op.input('Param')[0]}' are in "
                "a table; create its embedding with is_sparse=False"
            )
    updated = [
        op.input("Param")[0]
        for op in block.ops
        if {"Param", "Grad", "LearningRate"} <= {*op.inputs}
    ]
    inputs = {"Param": updated, **({} if loss is None else {"Loss": [loss]})}
    averaging = _operator(
        "average_over_ranks", inputs, {"ParamOut": updated}, {"parameters": updated}, "optimize"
    )
    block.hold_ops([*block.ops, averaging])


def add_sync_batch_norm(program: Program) -> None:
    """Make batch_norm use the mean and variance over the batches of all ranks."""
    for block in program.blocks:
        for op in block.ops:
            if op.type == "batch_norm":
                op.type = "sync_batch_norm"
    program.changed()


def _operator(
    type: str,
    inputs: dict[str, list[str]],
    outputs: dict[str, list[str]],
    attrs: dict[str, list[str]],
    role: Role = "backward",
) -> Operator:
    return Operator(type, inputs, outputs, attrs, role=role, site=call_site())
