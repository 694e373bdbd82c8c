"""The fleet of this process, for programs on parameter servers."""

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
from sparsefleet.fluid.distributed.program_fleet import ProgramFleet as DistributedTranspiler
from sparsefleet.fluid.distributed.program_fleet import ProgramOptimizer as TranspilerOptimizer
from sparsefleet.fluid.incubate.fleet.parameter_server.distribute_transpiler import (
    distributed_strategy,
    distributed_strategy_factory,
)
from sparsefleet.fluid.incubate.fleet.parameter_server.distribute_transpiler._process import fleet
from sparsefleet.fluid.unknown_names import unknown_names

__getattr__ = unknown_names("fluid.incubate.fleet.parameter_server.distribute_transpiler")

__all__ = [
    "AsyncStrategy",
    "DistributeTranspilerConfig",
    "DistributedStrategy",
    "DistributedTranspiler",
    "GeoStrategy",
    "HalfAsyncStrategy",
    "ServerRuntimeConfig",
    "StrategyFactory",
    "SyncStrategy",
    "TrainerRuntimeConfig",
    "TranspilerOptimizer",
    "distributed_strategy",
    "distributed_strategy_factory",
    "fleet",
]
