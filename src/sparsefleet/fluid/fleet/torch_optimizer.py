"""Torch models trained with Fluid's strategies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from sparsefleet import optim
from sparsefleet.errors import ConfigError
from sparsefleet.fleet import Fleet
from sparsefleet.fleet.fleet_model import FleetModel
from sparsefleet.fluid.fleet.settings import DistributeTranspilerConfig
from sparsefleet.fluid.fleet.strategies import (
    DistributedStrategy,
    mode_of_strategy,
    strategy_from,
    threads_of_strategy,
)

if TYPE_CHECKING:
    from sparsefleet.fleet.fleet_model import ScheduleLike

__all__ = ["DistributedOptimizer", "distributed_optimizer"]


def distributed_optimizer(
    fleet: Fleet,
    optimizer: torch.optim.Optimizer | optim.Optimizer,
    strategy: DistributedStrategy | DistributeTranspilerConfig | None = None,
    *,
    model: nn.Module,
    schedule: ScheduleLike | None = None,
) -> DistributedOptimizer:
    """Bind a torch model, like `Fleet.distribute`, but with one of Fluid's strategies.

    If the strategy is None, training is synchronous.
    """
    if not fleet.is_initialized:
        raise ConfigError("fleet is not initialized; call fleet.init() first")
    strategy = strategy_from(strategy)
    distributed = fleet.distribute(
        model,
        optimizer,
        mode_of_strategy(strategy),
        threads=threads_of_strategy(strategy),
        schedule=schedule,
    )
    return DistributedOptimizer(optimizer, strategy, distributed)


class DistributedOptimizer:
    """An optimizer whose steps are performed by the fleet's mode.

    Inside `with fleet.step():`, `minimize(loss)` is `loss.backward()` with checks; the gradients
    are sent when the step ends.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer | optim.Optimizer,
        strategy: DistributedStrategy,
        distributed: FleetModel,
    ) -> None:
        self.optimizer = optimizer
        self.strategy = strategy
        self.distributed = distributed

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Return a torch optimizer's parameter groups; a `sparsefleet.optim` object has none."""
        if isinstance(self.optimizer, torch.optim.Optimizer):
            return self.optimizer.param_groups
        return []

    def backward(self, loss: torch.Tensor) -> None:
        """Compute the gradients of a scalar loss."""
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            found = list(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise ConfigError(
                f"loss must be a tensor with one element, got {found}; reduce it with .mean()"
            )
        torch.autograd.backward(loss)

    def minimize(self, loss: torch.Tensor) -> None:
        """Call `backward`. The update follows when the step ends."""
        self.backward(loss)
