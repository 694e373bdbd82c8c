"""What a strategy changes in a module before it is trained."""

from __future__ import annotations

from torch import nn

from sparsefleet.collective.compiled import compile_module
from sparsefleet.collective.mixed_precision import keep_in_float32
from sparsefleet.collective.recompute import recompute_submodules
from sparsefleet.collective.strategy import CollectiveStrategy
from sparsefleet.collective.sync_batch_norm import NormGroup, convert_batch_norms
from sparsefleet.collective.world import World

__all__ = ["prepare_module"]


def prepare_module(
    module: nn.Module, world: World, strategy: CollectiveStrategy
) -> tuple[nn.Module, NormGroup | None]:
    """The module as the strategy wants it, and the group of its batch norms if they are
    synchronised, for ``CollectiveTraining``. All ranks must call it.

    The module is changed in place, except if it is itself a batch norm; parameters and their
    names stay. Order: batch norms, float32 parts, recomputation around them, compilation of all.
    """
    norm_group = None
    if strategy.sync_batch_norm and world.size > 1:
        norm_group = NormGroup(world)
        module = convert_batch_norms(module, norm_group)
    if strategy.amp is not None:
        keep_in_float32(module, strategy.amp.float32_modules)
    recompute_submodules(module, strategy.recompute)
    if strategy.compile:
        compile_module(module)
    return module, norm_group
