"""Convert programs, in place, after `minimize`, into the programs that a rank runs."""

from __future__ import annotations

import logging

from sparsefleet.collective import CollectiveStrategy
from sparsefleet.errors import ConfigError
from sparsefleet.fluid.collective.exchange_program import (
    add_averaging,
    add_broadcast,
    add_exchange,
    add_sync_batch_norm,
    is_exchanged,
)
from sparsefleet.fluid.collective.gradient_role import GradientRole
from sparsefleet.fluid.collective.local_sgd_role import LocalSgdRole
from sparsefleet.fluid.collective.ranks import Ranks, present_ranks
from sparsefleet.fluid.fleet.execution import BuildStrategy
from sparsefleet.fluid.framework import Program
from sparsefleet.fluid.framework.flags import given_flag

__all__ = ["RankProgram", "exchange_strategy", "train_together"]


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
