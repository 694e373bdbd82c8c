"""How a collective job trains."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sparsefleet.fleet.execution import BuildStrategy, ExecutionStrategy

__all__ = ["DistributedStrategy"]


@dataclass(kw_only=True, repr=False)
class DistributedStrategy(BuildStrategy):
    """A BuildStrategy, and what concerns several ranks.

    docs/fluid_collective.md says what each field does.

    >>> strategy = DistributedStrategy()
    >>> strategy.nccl_comm_num, strategy.fuse_all_reduce_ops = 2, True
    >>> strategy.mode
    'nccl2'
    """

    mode: str = "nccl2"
    """nccl2: `fleet.main_program` is a CompiledProgram; collective: a Program, by operators."""

    collective_mode: str | None = None
    """One of "grad_allreduce", "local_sgd", in mode "collective"."""

    use_local_sgd: bool = False
    """Ranks train alone and average their parameters now and then."""

    local_sgd_is_warm_steps: int = 0
    """Steps in which gradients are averaged, before that."""

    local_sgd_steps: int = 1
    """Steps from one averaging to the next, in runs of `fleet.main_program`."""

    local_sgd_adaptive: bool = False
    """The interval becomes smaller with the loss; local_sgd_steps is the first one."""

    forward_recompute: bool = False
    """Keep only recompute_checkpoints of the forward pass, and compute the rest again."""

    recompute_checkpoints: list[Any] = field(default_factory=list)
    """Variables, in their order."""

    use_amp: bool = False
    """Half precision where it is safe, with a loss that is scaled as needed."""

    amp_loss_scaling: float = 2.0**15
    """What the loss is multiplied by at first."""

    timeout_s: float | None = None
    """Of every wait for other ranks; None: 300."""

    use_dist_fc: bool = False
    """Not supported: one layer spread over the ranks."""

    dist_fc_config: Any = None
    exec_strategy: ExecutionStrategy = field(default_factory=ExecutionStrategy)
