"""Programs that a script has minimized, changed in place into those of a rank."""

from __future__ import annotations

from sparsefleet.collective import CollectiveStrategy
from sparsefleet.errors import ConfigError
from sparsefleet.fluid.collective.exchange_program import (
    add_averaging,
    add_broadcast,
    add_exchange,
    add_sync_batch_norm,
)
from sparsefleet.fluid.collective.gradient_role import GradientRole
from sparsefleet.fluid.collective.local_sgd_role import LocalSgdRole
from sparsefleet.fluid.collective.ranks import Ranks
from sparsefleet.fluid.framework import Program

__all__ = ["train_together"]


def train_together(
    program: Program,
    startup: Program,
    ranks: Ranks,
    strategy: CollectiveStrategy,
    loss: str | None = None,
) -> None:
    """Ranks exchange gradients in each step or, with `local_sgd`, parameters now and then.

    loss: name of what an adaptive interval goes by.
    """
    if ranks.size < 2:
        raise ConfigError(
            f"a program of a collective job needs 2 endpoints or more, got {ranks.size}: start "
            'several ranks, or use mode "nccl2"'
        )
    if program._distributed is not None:
        raise ConfigError("this program was made one of a job before")
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
