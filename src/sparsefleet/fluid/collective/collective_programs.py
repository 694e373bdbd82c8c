"""Convert programs, in place, after `minimize`, into the programs that a rank runs."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from sparsefleet.collective import CollectiveStrategy
from sparsefleet.errors import ConfigError
from sparsefleet.fluid.collective.collective_role import is_exchanged
from sparsefleet.fluid.collective.gradient_role import GradientRole, LocalSgdRole
from sparsefleet.fluid.collective.ranks import Ranks, present_ranks
from sparsefleet.fluid.fleet.settings import BuildStrategy
from sparsefleet.fluid.framework import Operator, Parameter, Program
from sparsefleet.fluid.framework.call_site import call_site
from sparsefleet.fluid.framework.flags import given_flag
from sparsefleet.fluid.framework.operator import Role

__all__ = [
    "RankProgram",
    "add_averaging",
    "add_broadcast",
    "add_exchange",
    "add_sync_batch_norm",
    "exchange_strategy",
    "train_together",
]


def train_together(
    program: Program,
    startup: Program,
    ranks: Ranks,
    strategy: CollectiveStrategy,
    loss: str | None = None,
) -> None:
    """Make the ranks exchange gradients in every step or, with `local_sgd`, average parameters
    periodically.

    loss: name of the loss that controls an adaptive interval.
    """
    if ranks.size < 2:
        raise ConfigError(
            f"a program in a collective job needs at least 2 endpoints, got {ranks.size}; start "
            'several ranks, or use mode "nccl2"'
        )
    if program._distributed is not None:
        raise ConfigError("this program already belongs to a collective job; create a new program")
    add_broadcast(startup, ranks)
    if strategy.sync_batch_norm:
        add_sync_batch_norm(program)
    local = strategy.local_sgd
    if local is None or local.warm_steps:
        add_exchange(program, overlap=True)
    if local is None:
        program._distributed = GradientRole(ranks, program, strategy)
        return
    add_averaging(program, loss if local.adaptive else None)
    program._distributed = LocalSgdRole(ranks, program, strategy)


_log = logging.getLogger("sparsefleet.fluid")

Scale = BuildStrategy.GradientScaleStrategy


class RankProgram:
    """Converts copies of a program into programs for this rank.

    All copies share one role object.
    """

    def __init__(self, build: BuildStrategy) -> None:
        ranks = present_ranks()
        if (build.num_trainers, build.trainer_id) != (ranks.size, ranks.rank):
            raise ConfigError(
                f"BuildStrategy says trainer {build.trainer_id} of {build.num_trainers}, but this "
                f"process is rank {ranks.rank} of {ranks.size}; first call fleet.init, or run the "
                'startup program that DistributeTranspiler created with mode "nccl2"'
            )
        if build.async_mode:
            raise ConfigError(
                "BuildStrategy.async_mode is not supported, because ranks in a collective job "
                "step together"
            )
        self._build = build
        self._ranks = ranks
        self.role: GradientRole | None = None
        """The shared role, set by the first copy that trains."""

    def adapt(self, program: Program, replicas: int) -> None:
        """Convert `program`, a copy of the original, in place."""
        if self._build.sync_batch_norm:
            if replicas > 1:
                raise ConfigError(
                    f"sync_batch_norm does not support {replicas} places per rank; use one place "
                    "per rank"
                )
            add_sync_batch_norm(program)
        add_exchange(program, overlap=replicas == 1)
        if not is_exchanged(program):
            return
        if self.role is None:
            strategy = exchange_strategy(self._build, self._ranks)
            sums = self._build.gradient_scale_strategy is not Scale.CoeffNumDevice
            self.role = GradientRole(self._ranks, program, strategy, sums=sums)
        self.role.program = program
        program._distributed = self.role


def exchange_strategy(build: BuildStrategy, ranks: Ranks) -> CollectiveStrategy:
    """Return the gradient exchange that a BuildStrategy specifies."""
    is_whole = build.reduce_strategy is BuildStrategy.ReduceStrategy.AllReduce
    if build.fuse_all_reduce_ops and not is_whole:
        _log.warning(
            "fuse_all_reduce_ops has no effect with ReduceStrategy.Reduce, which exchanges "
            "gradients one at a time; ReduceStrategy.AllReduce fuses them"
        )
    inner = build.hierarchical_allreduce_inter_nranks
    groups = given_flag("FLAGS_fuse_parameter_groups_size")
    return CollectiveStrategy(
        fuse_all_reduce=build.fuse_all_reduce_ops and is_whole,
        fuse_memory_mb=given_flag("FLAGS_fuse_parameter_memory_size"),
        fuse_groups=None if groups is None else int(groups),
        num_rings=build.nccl_comm_num,
        hierarchical=build.use_hierarchical_allreduce,
        ranks_per_node=inner if inner > 1 else ranks.ranks_per_node,
        sync_batch_norm=build.sync_batch_norm,
    )


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
