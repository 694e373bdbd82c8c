"""A compiled program as one rank of several runs it."""

from __future__ import annotations

import logging

from sparsefleet.collective import CollectiveStrategy
from sparsefleet.errors import ConfigError
from sparsefleet.fleet.execution import BuildStrategy
from sparsefleet.fluid.collective.exchange_program import (
    add_exchange,
    add_sync_batch_norm,
    is_exchanged,
)
from sparsefleet.fluid.collective.gradient_role import GradientRole
from sparsefleet.fluid.collective.ranks import Ranks, present_ranks
from sparsefleet.fluid.flags import given_flag
from sparsefleet.fluid.framework import Program

__all__ = ["RankProgram", "exchange_strategy"]

_log = logging.getLogger("sparsefleet.fluid")

Scale = BuildStrategy.GradientScaleStrategy


class RankProgram:
    """Makes copies of a program, which change with it, those of a rank; all have one role."""

    def __init__(self, build: BuildStrategy) -> None:
        ranks = present_ranks()
        if (build.num_trainers, build.trainer_id) != (ranks.size, ranks.rank):
            raise ConfigError(
                f"BuildStrategy says trainer {build.trainer_id} of {build.num_trainers}, but this "
                f"process is rank {ranks.rank} of {ranks.size}: call fleet.init, or run the "
                'start-up program that DistributeTranspiler made with mode "nccl2", before'
            )
        if build.async_mode:
            raise ConfigError("BuildStrategy.async_mode: ranks of a collective job step together")
        self._build = build
        self._ranks = ranks
        self.role: GradientRole | None = None
        """From the first copy that trains on."""

    def adapt(self, program: Program, replicas: int) -> None:
        """Changes a copy of the program, in place."""
        if self._build.sync_batch_norm:
            if replicas > 1:
                raise ConfigError(
                    f"sync_batch_norm with {replicas} places in each of several ranks: give each "
                    "rank one place"
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
    """What a BuildStrategy says about the exchange of gradients."""
    is_whole = build.reduce_strategy is BuildStrategy.ReduceStrategy.AllReduce
    if build.fuse_all_reduce_ops and not is_whole:
        _log.warning(
            "fuse_all_reduce_ops does nothing with ReduceStrategy.Reduce: gradients are exchanged "
            "one by one; ReduceStrategy.AllReduce fuses them"
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
