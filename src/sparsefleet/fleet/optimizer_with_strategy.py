"""The optimizer as Fluid's fleet hands it back: with a strategy."""

from __future__ import annotations

from typing import Any

import torch

from sparsefleet import optim
from sparsefleet.errors import ConfigError
from sparsefleet.fleet.distributed_model import DistributedModel
from sparsefleet.fleet.strategies import DistributedStrategy

__all__ = ["DistributedOptimizer"]


class DistributedOptimizer:
    """An optimizer whose steps the fleet's mode carries out.

    Inside `with fleet.step():`, `minimize(loss)` is `loss.backward()` with checks; the gradients
    go when the step ends.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer | optim.Optimizer,
        strategy: DistributedStrategy,
        distributed: DistributedModel,
    ) -> None:
        self.optimizer = optimizer
        self.strategy = strategy
        self.distributed = distributed

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Those of the torch optimizer; a description of ours has none."""
        if isinstance(self.optimizer, torch.optim.Optimizer):
            return self.optimizer.param_groups
        return []

    def backward(self, loss: torch.Tensor) -> None:
        """Computes the gradients of a scalar loss."""
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            found = list(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise ConfigError(f"loss must be a tensor with one element, got {found}: .mean() it")
        torch.autograd.backward(loss)

    def minimize(self, loss: torch.Tensor) -> None:
        """`backward`; the update follows at the end of the step."""
        self.backward(loss)
