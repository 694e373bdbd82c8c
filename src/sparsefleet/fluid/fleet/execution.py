"""Fluid's settings for running a program in one process.

Names and defaults are from Fluid 1.8.5. Many settings affect only Fluid's graph executor and
are kept so that scripts can set them; only the settings that have an effect are documented.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from sparsefleet.fluid.fleet.settings import Settings

__all__ = ["BuildStrategy", "ExecutionStrategy"]


@dataclass(kw_only=True, repr=False)
class ExecutionStrategy(Settings):
    """Settings for how operators are scheduled.

    >>> ExecutionStrategy().num_iteration_per_drop_scope
    100
    """

    num_threads: int = 0
    """Number of training threads; 0 lets the executor choose."""

    num_iteration_per_drop_scope: int = 100
    """Number of runs of a data-parallel program after which freed memory is returned to the system.
    A larger value means fewer allocations and more memory.
    """

    num_iteration_per_run: int = 1
    use_thread_barrier: bool = False
    """Whether a worker's threads wait for each other after each batch (sync, half-async)."""

    use_experimental_executor: bool = True
    use_cuda: bool = True
    allow_op_delay: bool = False


@dataclass(kw_only=True, repr=False)
class BuildStrategy(Settings):
    """Settings for how a program is compiled.

    >>> strategy = BuildStrategy()
    >>> strategy.reduce_strategy = BuildStrategy.ReduceStrategy.Reduce
    """

    class ReduceStrategy(Enum):
        """How gradients from several places are combined."""

        AllReduce = 0
        Reduce = 1

    class GradientScaleStrategy(Enum):
        """How the gradient of the loss is scaled."""

        CoeffNumDevice = 0
        One = 1
        Customized = 2

    reduce_strategy: ReduceStrategy = ReduceStrategy.AllReduce
    """With "Reduce", a worker's threads share one copy of the parameters."""

    gradient_scale_strategy: GradientScaleStrategy = GradientScaleStrategy.CoeffNumDevice
    """The initial gradient of the loss: 1/places, 1, or fed by the script."""

    fuse_all_reduce_ops: bool = True
    fuse_elewise_add_act_ops: bool = False
    """Whether to use torch.compile to fuse a sum with the activation that follows it."""

    fuse_bn_act_ops: bool = False
    """Whether to use torch.compile to fuse batch norm with the activation that follows it."""

    fuse_relu_depthwise_conv: bool = False
    enable_auto_fusion: bool = False
    """Whether to enable both kinds of fusion."""

    fuse_all_optimizer_ops: bool = False
    fuse_broadcast_ops: bool = True
    sync_batch_norm: bool = False
    enable_inplace: bool = True
    memory_optimize: bool | None = None
    enable_sequential_execution: bool = False
    enable_backward_optimizer_op_deps: bool = True
    remove_unnecessary_lock: bool = True
    cache_runtime_context: bool = False
    num_trainers: int = 1
    trainer_id: int = 0
    trainers_endpoints: list[str] = field(default_factory=list)
    nccl_comm_num: int = 1
    use_hierarchical_allreduce: bool = False
    hierarchical_allreduce_inter_nranks: int = 0
    is_distribution: bool = False
    async_mode: bool = False
    """Whether a worker's threads take batches independently."""

    debug_graphviz_path: str = ""
