"""The strategy for a collective job, and checks of its options."""

from __future__ import annotations

import dataclasses
import logging
import os
from dataclasses import dataclass, field
from typing import Any

from sparsefleet.collective import CollectiveStrategy, LocalSgdConfig
from sparsefleet.errors import ConfigError
from sparsefleet.fluid.collective.collective_programs import exchange_strategy
from sparsefleet.fluid.collective.ranks import Ranks, check_nodes
from sparsefleet.fluid.fleet.settings import BuildStrategy, ExecutionStrategy
from sparsefleet.fluid.optimizer.mixed_precision import decorate
from sparsefleet.fluid.optimizer.wrappers import RecomputeOptimizer

__all__ = [
    "DistributedStrategy",
    "build_strategy",
    "check_conflicts",
    "fit_to_ranks",
    "rank_strategy",
    "wrapped_optimizer",
]


@dataclass(kw_only=True, repr=False)
class DistributedStrategy(BuildStrategy):
    """A BuildStrategy with additional options for several ranks.

    docs/fluid_collective.md describes each field.

    >>> strategy = DistributedStrategy()
    >>> strategy.nccl_comm_num, strategy.fuse_all_reduce_ops = 2, True
    >>> strategy.mode
    'nccl2'
    """

    mode: str = "nccl2"
    """In mode "nccl2", `fleet.main_program` is a CompiledProgram; in mode "collective", a Program
    whose operators communicate.
    """

    collective_mode: str | None = None
    """In mode "collective", either "grad_allreduce" or "local_sgd"."""

    use_local_sgd: bool = False
    """Whether ranks train alone and average their parameters periodically."""

    local_sgd_is_warm_steps: int = 0
    """Number of initial steps that average gradients instead of parameters."""

    local_sgd_steps: int = 1
    """Number of steps from one averaging to the next, counted in runs of `fleet.main_program`."""

    local_sgd_adaptive: bool = False
    """Whether to shrink the interval as the loss falls; local_sgd_steps is the first interval."""

    forward_recompute: bool = False
    """Whether to keep only recompute_checkpoints from the forward pass and recompute all else."""

    recompute_checkpoints: list[Any] = field(default_factory=list)
    """The variables to keep from the forward pass, in program order."""

    use_amp: bool = False
    """Whether to use half precision where it is safe, with dynamic loss scaling."""

    amp_loss_scaling: float = 2.0**15
    """The initial loss scale."""

    timeout_s: float | None = None
    """Timeout in seconds for every wait for other ranks; None means 300."""

    use_dist_fc: bool = False
    """A layer distributed over the ranks; not supported."""

    dist_fc_config: Any = None
    exec_strategy: ExecutionStrategy = field(default_factory=ExecutionStrategy)


_log = logging.getLogger("sparsefleet.fluid")

_SYNC_FLAG = "FLAGS_sync_nccl_allreduce"

_MANY_THREADS = 4


def check_conflicts(strategy: DistributedStrategy, optimizer: Any) -> None:
    """Raise AssertionError for conflicting options.

    If local SGD is chosen, also sets the mode accordingly.
    """
    kinds = {type(one).__name__ for one in _chain(optimizer)}
    used = {
        "use_dgc": any("DGC" in kind for kind in kinds),
        "use_lamb": any("Lamb" in kind for kind in kinds),
        "use_local_sgd": strategy.use_local_sgd,
        "use_dist_fc": strategy.use_dist_fc,
    }
    for name in ("use_local_sgd", "use_dist_fc"):
        for other in sorted(used):
            if used[name] and other != name and used[other]:
                raise AssertionError(f"you can't use {name} and {other} together")
    if strategy.use_dist_fc:
        if strategy.dist_fc_config is None:
            raise AssertionError("DistributedStrategy.dist_fc_config should be set")
        raise ConfigError("use_dist_fc, a layer spread over ranks, is not supported here")
    if strategy.use_local_sgd:
        strategy.mode, strategy.collective_mode = "collective", "local_sgd"
    if strategy.mode not in ("nccl2", "collective"):
        raise ConfigError(f'mode must be "nccl2" or "collective", got {strategy.mode!r}')
    if strategy.collective_mode in ("local_sgd", "grad_allreduce"):
        if strategy.mode != "collective":
            raise AssertionError(
                f"collective_mode {strategy.collective_mode!r} can be used under mode "
                f'"collective" only, got {strategy.mode!r}'
            )
    elif strategy.mode == "collective":
        raise ConfigError(
            'mode "collective" takes collective_mode "grad_allreduce" or "local_sgd", got '
            f"{strategy.collective_mode!r}"
        )


def wrapped_optimizer(strategy: DistributedStrategy, optimizer: Any) -> Any:
    """Wrap the optimizer for recomputation and, outside that, for mixed precision, if requested."""
    checkpoints = strategy.recompute_checkpoints
    if not isinstance(checkpoints, list):
        raise ValueError(
            f"DistributedStrategy.recompute_checkpoints must be a list, got {checkpoints!r}"
        )
    if strategy.forward_recompute:
        if not checkpoints:
            raise ValueError(
                "DistributedStrategy.recompute_checkpoints is empty, but forward_recompute needs "
                "the variables to keep"
            )
        _refuse(optimizer, "forward_recompute", "RecomputeOptimizer", "OptimizerWithMixedPrecision")
        optimizer = RecomputeOptimizer(optimizer)
        optimizer._set_checkpoints(checkpoints)
    if strategy.use_amp:
        _refuse(optimizer, "use_amp", "OptimizerWithMixedPrecision", "DGCMomentumOptimizer")
        optimizer = decorate(
            optimizer, init_loss_scaling=strategy.amp_loss_scaling, use_dynamic_loss_scaling=True
        )
    return optimizer


def fit_to_ranks(strategy: DistributedStrategy, ranks: Ranks) -> None:
    """Correct options that do not make sense for these ranks, and log a warning."""
    execution = strategy.exec_strategy
    if strategy.timeout_s is not None:
        ranks.timeout_s = strategy.timeout_s
    if ranks.node_num == 1:
        _reset(strategy, "nccl_comm_num", 1, "there is only 1 node")
        _reset(strategy, "use_hierarchical_allreduce", False, "there is only 1 node")
    if strategy.sync_batch_norm:
        _reset(strategy, "nccl_comm_num", 1, "of sync_batch_norm")
        _reset(strategy, "use_hierarchical_allreduce", False, "of sync_batch_norm")
        execution.num_threads = 1
    elif not execution.num_threads and os.environ.get(_SYNC_FLAG, "1") == "1":
        calls = 2 if strategy.use_hierarchical_allreduce else 1
        execution.num_threads = calls * strategy.nccl_comm_num + 1
        if execution.num_threads > _MANY_THREADS:
            _log.warning(
                "num_threads is set to %d, one for each exchange in progress; if this is too many "
                "for the machine, set exec_strategy.num_threads, or export %s=0",
                execution.num_threads,
                _SYNC_FLAG,
            )
    if strategy.use_hierarchical_allreduce:
        check_nodes(strategy.hierarchical_allreduce_inter_nranks, ranks)
    strategy.num_trainers, strategy.trainer_id = ranks.size, ranks.rank
    strategy.trainers_endpoints = list(ranks.role.worker_endpoints)
    strategy.enable_backward_optimizer_op_deps = True


def build_strategy(strategy: DistributedStrategy) -> BuildStrategy:
    """Return the part of the strategy that applies to a CompiledProgram."""
    made = BuildStrategy()
    made.update({name: getattr(strategy, name) for name in BuildStrategy.field_names()})
    return made


def rank_strategy(strategy: DistributedStrategy, ranks: Ranks) -> CollectiveStrategy:
    """Return the strategy for a rank in mode "collective"."""
    exchange = exchange_strategy(strategy, ranks)
    if strategy.collective_mode != "local_sgd":
        return exchange
    local = LocalSgdConfig(
        warm_steps=strategy.local_sgd_is_warm_steps,
        steps=strategy.local_sgd_steps,
        adaptive=strategy.local_sgd_adaptive,
        max_steps=max(strategy.local_sgd_steps, LocalSgdConfig().max_steps),
    )
    return dataclasses.replace(exchange, local_sgd=local)


def _chain(optimizer: Any) -> list[Any]:
    """Yield an optimizer and the optimizers it wraps."""
    found = []
    while optimizer is not None:
        found.append(optimizer)
        held = vars(optimizer)
        optimizer = held.get("_optimizer", held.get("inner_optimizer"))
    return found


def _refuse(optimizer: Any, option: str, *kinds: str) -> None:
    for kind in (type(one).__name__ for one in _chain(optimizer)):
        if kind in kinds:
            raise ValueError(
                f"can not use {kind} when you set DistributedStrategy.{option} as True"
            )


def _reset(strategy: DistributedStrategy, field: str, value: Any, reason: str) -> None:
    if getattr(strategy, field) != value:
        _log.warning("%s is set to %s because %s", field, value, reason)
        setattr(strategy, field, value)
