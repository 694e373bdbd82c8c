"""How a collective job trains."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sparsefleet.fleet.execution import BuildStrategy, ExecutionStrategy

__all__ = ["DistributedStrategy"]


@dataclass(kw_only=True, repr=False)
class DistributedStrategy(BuildStrategy):
    """A BuildStrategy, and what concerns several processes; the rest is kept for scripts to set.

    >>> DistributedStrategy().mode
    'nccl2'
    """

    mode: str = "nccl2"
    collective_mode: str | None = None
    """One of "grad_allreduce", "local_sgd"."""

    use_local_sgd: bool = False
    local_sgd_is_warm_steps: int = 0
    local_sgd_steps: int = 1
    use_dist_fc: bool = False
    dist_fc_config: Any = None
    forward_recompute: bool = False
    recompute_checkpoints: list[Any] = field(default_factory=list)
    use_amp: bool = False
    amp_loss_scaling: float = 2.0**15
    exec_strategy: ExecutionStrategy = field(default_factory=ExecutionStrategy)
