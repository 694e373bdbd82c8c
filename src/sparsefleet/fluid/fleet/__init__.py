"""Fluid's role makers, strategies and their configs, and the base class for its fleets."""

from sparsefleet.fluid.fleet.fluid_fleet import Fleet
from sparsefleet.fluid.fleet.role_makers import (
    GeneralRoleMaker,
    PaddleCloudRoleMaker,
    Role,
    RoleMakerBase,
    UserDefinedCollectiveRoleMaker,
    UserDefinedRoleMaker,
)
from sparsefleet.fluid.fleet.settings import (
    BuildStrategy,
    DistributeTranspilerConfig,
    ExecutionStrategy,
    HashName,
    ModeName,
    PSDispatcher,
    RoundRobin,
    ServerRuntimeConfig,
    TrainerRuntimeConfig,
    UnknownFieldError,
)
from sparsefleet.fluid.fleet.strategies import (
    AsyncStrategy,
    DistributedStrategy,
    DistributedStrategyFactory,
    GeoStrategy,
    HalfAsyncStrategy,
    StrategyFactory,
    SyncStrategy,
    strategy_from,
)
from sparsefleet.fluid.fleet.torch_optimizer import DistributedOptimizer, distributed_optimizer

__all__ = [
    "AsyncStrategy",
    "BuildStrategy",
    "DistributeTranspilerConfig",
    "DistributedOptimizer",
    "DistributedStrategy",
    "DistributedStrategyFactory",
    "ExecutionStrategy",
    "Fleet",
    "GeneralRoleMaker",
    "GeoStrategy",
    "HalfAsyncStrategy",
    "HashName",
    "ModeName",
    "PSDispatcher",
    "PaddleCloudRoleMaker",
    "Role",
    "RoleMakerBase",
    "RoundRobin",
    "ServerRuntimeConfig",
    "StrategyFactory",
    "SyncStrategy",
    "TrainerRuntimeConfig",
    "UnknownFieldError",
    "UserDefinedCollectiveRoleMaker",
    "UserDefinedRoleMaker",
    "distributed_optimizer",
    "strategy_from",
]
