"""Strategies and their configs."""

from sparsefleet.fleet import (
    AsyncStrategy,
    DistributedStrategy,
    DistributeTranspilerConfig,
    GeoStrategy,
    HalfAsyncStrategy,
    ServerRuntimeConfig,
    StrategyFactory,
    SyncStrategy,
    TrainerRuntimeConfig,
)
from sparsefleet.fluid.unknown_names import unknown_names

__getattr__ = unknown_names("distribute_transpiler.distributed_strategy")

__all__ = [
    "AsyncStrategy",
    "DistributeTranspilerConfig",
    "DistributedStrategy",
    "GeoStrategy",
    "HalfAsyncStrategy",
    "ServerRuntimeConfig",
    "StrategyFactory",
    "SyncStrategy",
    "TrainerRuntimeConfig",
]
