"""The fleet: roles of processes within a job, how they train together, and the life of a job.

The functions here are the calls of one object for the process, `fleet`.
"""

from sparsefleet.fleet._process import (
    all_gather,
    barrier_worker,
    distribute,
    distributed_optimizer,
    fleet,
    init,
    init_server,
    init_worker,
    is_first_worker,
    is_server,
    is_worker,
    load_inference_model,
    run_server,
    save_inference_model,
    save_persistables,
    server_endpoints,
    server_index,
    server_num,
    settle,
    split_files,
    step,
    stop_worker,
    worker_endpoints,
    worker_index,
    worker_num,
)
from sparsefleet.fleet.dispatchers import HashName, PSDispatcher, RoundRobin
from sparsefleet.fleet.execution import BuildStrategy, ExecutionStrategy
from sparsefleet.fleet.fleet import Fleet
from sparsefleet.fleet.role_info import RoleInfo, RoleKind
from sparsefleet.fleet.role_makers import (
    GeneralRoleMaker,
    PaddleCloudRoleMaker,
    Role,
    RoleMakerBase,
    UserDefinedCollectiveRoleMaker,
    UserDefinedRoleMaker,
)
from sparsefleet.fleet.roles import role_from_environment
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
    "Fleet",
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
    "all_gather",
    "barrier_worker",
    "distribute",
    "distributed_optimizer",
    "fleet",
    "init",
    "init_server",
    "init_worker",
    "is_first_worker",
    "is_server",
    "is_worker",
    "load_inference_model",
    "role_from_environment",
    "run_server",
    "save_inference_model",
    "save_persistables",
    "server_endpoints",
    "server_index",
    "server_num",
    "settle",
    "split_files",
    "step",
    "stop_worker",
    "strategy_from",
    "worker_endpoints",
    "worker_index",
    "worker_num",
]
