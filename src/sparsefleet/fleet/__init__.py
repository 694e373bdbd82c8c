"""Roles of processes within a job, and the strategies that describe how they train."""

from sparsefleet.fleet.dispatchers import HashName, PSDispatcher, RoundRobin
from sparsefleet.fleet.execution import BuildStrategy, ExecutionStrategy
from sparsefleet.fleet.role_info import RoleInfo, RoleKind
from sparsefleet.fleet.role_makers import (
    GeneralRoleMaker,
    PaddleCloudRoleMaker,
    Role,
    RoleMakerBase,
    UserDefinedCollectiveRoleMaker,
    UserDefinedRoleMaker,
)
from sparsefleet.fleet.roles import role_from_environment, split_files
from sparsefleet.fleet.runtime_configs import ModeName, ServerRuntimeConfig, TrainerRuntimeConfig
from sparsefleet.fleet.settings import UnknownFieldError
from sparsefleet.fleet.strategies import (
    AsyncStrategy,
    DistributedStrategy,
    DistributedStrategyFactory,
    GeoStrategy,
    HalfAsyncStrategy,
    StrategyFactory,
    SyncStrategy,
    strategy_from,
)
from sparsefleet.fleet.transpiler_config import DistributeTranspilerConfig

__all__ = [
    "AsyncStrategy",
    "BuildStrategy",
    "DistributeTranspilerConfig",
    "DistributedStrategy",
    "DistributedStrategyFactory",
    "ExecutionStrategy",
    "GeneralRoleMaker",
    "GeoStrategy",
    "HalfAsyncStrategy",
    "HashName",
    "ModeName",
    "PSDispatcher",
    "PaddleCloudRoleMaker",
    "Role",
    "RoleInfo",
    "RoleKind",
    "RoleMakerBase",
    "RoundRobin",
    "ServerRuntimeConfig",
    "StrategyFactory",
    "SyncStrategy",
    "TrainerRuntimeConfig",
    "UnknownFieldError",
    "UserDefinedCollectiveRoleMaker",
    "UserDefinedRoleMaker",
    "role_from_environment",
    "split_files",
    "strategy_from",
]
