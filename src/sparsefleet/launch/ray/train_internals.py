"""The private names of Ray Train that this package uses, and a check that they exist.

Ray Train has no public hook for replacing a failed worker alone, or for giving it the records of
its predecessor.
"""

from __future__ import annotations

from typing import Any

import ray

from sparsefleet.errors import ConfigError

__all__ = [
    "DataParallelTrainer",
    "FailureDecision",
    "FailurePolicy",
    "RayTrainError",
    "ReplicaGroupCallback",
    "ReportCallbackHandler",
    "SynchronizationBarrierResetError",
    "WorkerGroupCallback",
    "get_train_context",
]


def _unsupported(found: str) -> ConfigError:
    return ConfigError(
        f"sparsefleet needs Ray Train v2 from Ray 2.60, but this is Ray {ray.__version__}, "
        f"{found}; run pip install 'ray[default,train]==2.60.*'"
    )


try:
    from ray.train.v2._internal.constants import is_v2_enabled
    from ray.train.v2._internal.exceptions import RayTrainError
    from ray.train.v2._internal.execution.callback import (
        ReplicaGroupCallback,
        WorkerGroupCallback,
    )
    from ray.train.v2._internal.execution.checkpoint.report_handler import ReportCallbackHandler
    from ray.train.v2._internal.execution.checkpoint.sync_actor import (
        SynchronizationBarrierResetError,
    )
    from ray.train.v2._internal.execution.context import TrainContext, get_train_context
    from ray.train.v2._internal.execution.failure_handling import FailureDecision, FailurePolicy
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
except ImportError as error:
    raise _unsupported(f"which has changed ({error})") from error


def _require(owner: Any, name: str) -> None:
    if name not in owner.__dict__ and name not in getattr(owner, "__annotations__", {}):
        raise _unsupported(f"whose {owner.__name__} has no {name}")


if not is_v2_enabled():
    raise ConfigError("sparsefleet on Ray needs Ray Train v2; remove RAY_TRAIN_V2_ENABLED=0")
_require(DataParallelTrainer, "_initialize_and_run_controller")
_require(FailurePolicy, "make_decision")
_require(ReplicaGroupCallback, "after_replica_group_start")
_require(WorkerGroupCallback, "after_worker_group_start")
if not hasattr(ReportCallbackHandler([]), "_training_report_queues"):
    raise _unsupported("whose ReportCallbackHandler has no _training_report_queues")
for _name in (
    "checkpoint",
    "collective_seq",
    "dataset_shard_provider",
    "report",
    "storage_context",
    "_sync_checkpoint_dir_name_across_ranks",
    "_wait_then_report",
):
    _require(TrainContext, _name)
