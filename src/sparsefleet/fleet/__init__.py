"""The fleet: the role of this process in its job, the other processes, and the job's life cycle.

The functions are methods of the process's single `Fleet`.
"""

from sparsefleet.fleet._process import (
    all_gather,
    barrier_worker,
    begin_pass,
    distribute,
    end_pass,
    evaluating,
    init,
    init_server,
    init_worker,
    is_first_worker,
    is_server,
    is_worker,
    open_exchange,
    publish_rows,
    run_server,
    save_inference_model,
    save_persistables,
    server_endpoints,
    server_index,
    server_num,
    settle,
    sharding,
    split_files,
    step,
    stop_worker,
    worker_endpoints,
    worker_index,
    worker_num,
)
from sparsefleet.fleet.fleet import Fleet
from sparsefleet.fleet.job_process import join_world
from sparsefleet.fleet.role_info import RoleInfo
from sparsefleet.fleet.roles import role_from_environment

__all__ = [
    "Fleet",
    "RoleInfo",
    "all_gather",
    "barrier_worker",
    "begin_pass",
    "distribute",
    "end_pass",
    "evaluating",
    "init",
    "init_server",
    "init_worker",
    "is_first_worker",
    "is_server",
    "is_worker",
    "join_world",
    "open_exchange",
    "publish_rows",
    "role_from_environment",
    "run_server",
    "save_inference_model",
    "save_persistables",
    "server_endpoints",
    "server_index",
    "server_num",
    "settle",
    "sharding",
    "split_files",
    "step",
    "stop_worker",
    "worker_endpoints",
    "worker_index",
    "worker_num",
]
