"""Make a Ray Train worker a worker of the fleet while the user's training function runs."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import ray
import ray.train
from ray.train import BackendConfig
from ray.train.backend import Backend

from sparsefleet.errors import SparseFleetError
from sparsefleet.launch.ray.coordinator import Membership, Presence
from sparsefleet.launch.ray.node import (
    AddressBook,
    NodePlace,
    job_variables,
    own_loop_file,
    reserve_port,
)
from sparsefleet.launch.ray.ray_metrics import mirror_metrics
from sparsefleet.launch.ray.reports import (
    AlignedReports,
    FitPosition,
    first_checkpoint,
    use_checkpoint,
)
from sparsefleet.launch.ray.servers import FleetPlan
from sparsefleet.launch.ray.train_internals import get_train_context

__all__ = ["FleetBackendConfig"]

_STARTS_VARIABLE = "SPARSEFLEET_INCARNATION"
_STARTS_PER_ATTEMPT = 10_000
_LOST_JOB = 70  # EX_SOFTWARE: the job has failed elsewhere


class _FleetBackend(Backend):  # type: ignore[misc]
    """Counts how many times each rank was started. It lives in Ray Train's controller."""

    def __init__(self) -> None:
        self._starts: dict[tuple[str, int], int] = {}

    def on_start(self, worker_group: Any, backend_config: FleetBackendConfig) -> None:
        """Send each worker in a group, which may be a single new one, its start count."""
        plan = backend_config.plan
        pending = []
        for position, worker in enumerate(worker_group.get_workers()):
            key = (plan.job_id, worker.distributed_context.world_rank)
            start = self._starts.get(key, -1) + 1
            self._starts[key] = start
            number = plan.attempt * _STARTS_PER_ATTEMPT + start
            pending.append(worker_group.execute_single_async(position, _set_number, number))
        ray.get(pending)


class _ReplacingBackend(_FleetBackend):
    """Lets Ray Train replace a failed worker alone, since the servers keep the shared state."""

    has_replica_groups = True


def _set_number(number: int) -> None:
    os.environ[_STARTS_VARIABLE] = str(number)


class FleetBackendConfig(BackendConfig):  # type: ignore[misc]
    """Configures Ray Train to run each worker's training function as a worker of the fleet."""

    def __init__(
        self, plan: FleetPlan, coordinator: Any, shards: Mapping[str, list[Any]] | None = None
    ) -> None:
        self.plan = plan
        self.coordinator = coordinator
        self.shards = shards or {}
        """The parts of each dataset, one per rank, by dataset name."""

    @property
    def backend_cls(self) -> type[Backend]:
        return _ReplacingBackend if self.plan.servers.is_restartable else _FleetBackend

    @property
    def train_func_context(self) -> Callable[[], AbstractContextManager[None]]:
        plan, coordinator, shards = self.plan, self.coordinator, self.shards
        return lambda: _joined(plan, coordinator, shards)


@contextlib.contextmanager
def _joined(plan: FleetPlan, coordinator: Any, shards: Mapping[str, list[Any]]) -> Iterator[None]:
    """Act as a worker of the fleet while the block runs."""
    context = ray.train.get_context()
    rank = int(context.get_world_rank())
    number = int(os.environ[_STARTS_VARIABLE])
    place = NodePlace(plan)
    os.makedirs(place.memory_directory, mode=0o700, exist_ok=True)
    with contextlib.ExitStack() as stack:
        who = Presence(
            role="worker",
            index=rank,
            address=stack.enter_context(reserve_port(place.host)),
            node_id=place.node_id,
            host=place.host,
            pid=os.getpid(),
            start=number,
            checkpoint=_checkpoint_of_the_job(plan, number),
        )
        member: Membership = ray.get(coordinator.join.remote(who))
        _require_continuable(plan, rank, member)
        book = AddressBook(coordinator, place, member.who, _end_with_the_job)
        book.start()
        stack.callback(book.stop)
        os.environ.update(job_variables(plan, place))
        os.environ.update(_worker_variables(plan, place, rank, member))
        if not plan.servers.is_restartable:  # a new start of the whole job
            os.environ["SPARSEFLEET_JOB_ID"] = f"{plan.job_id}-{number}"
            os.environ["SPARSEFLEET_RESTARTS"] = str(number)
            os.environ[_STARTS_VARIABLE] = "0"
        mirror_metrics("worker", rank)
        if shards:
            _provide(shards, rank)
        stack.enter_context(_reporting_own_loop(book, place, rank))
        reports = _align_reports(plan, coordinator, book, member)
        yield
        if reports is not None:
            reports.end()


def _checkpoint_of_the_job(plan: FleetPlan, number: int) -> str:
    """Return the checkpoint that the job started from.

    Returns "" for a replacement, which gets the checkpoint from the process it replaces.
    """
    return first_checkpoint(get_train_context()) if number == 0 else plan.checkpoint or ""


def _align_reports(
    plan: FleetPlan, coordinator: Any, book: AddressBook, member: Membership
) -> AlignedReports | None:
    """Make `ray.train.report` and `get_checkpoint` continue where the replaced process stopped."""
    if not plan.servers.is_restartable:
        return None
    from sparsefleet.engine.worker_metrics import WORKER  # imports torch; needs the variables

    context, before = get_train_context(), member.before
    if (before is None and plan.checkpoint is not None) or (before and not before.has_own_loop):
        use_checkpoint(context, book.who.checkpoint)
    return AlignedReports(context, coordinator, book, FitPosition(WORKER))


def _worker_variables(
    plan: FleetPlan, place: NodePlace, rank: int, member: Membership
) -> dict[str, str]:
    names = [f"server-{index}" for index in range(plan.servers.num_servers)]
    servers = ",".join(place.address_file(name) for name in names)
    return {
        "SPARSEFLEET_ROLE": "worker",
        "SPARSEFLEET_INDEX": str(rank),
        "SPARSEFLEET_SERVERS": servers,
        "SPARSEFLEET_MEETING_POINT": member.meeting_point,
        "SPARSEFLEET_WORKERS_PER_NODE": str(member.workers_per_node),
        "SPARSEFLEET_MEMORY_DIR": place.memory_directory,
        "TRAINING_ROLE": "TRAINER",
        "PADDLE_TRAINER_ID": str(rank),
        "PADDLE_PSERVERS_IP_PORT_LIST": servers,
    }


def _require_continuable(plan: FleetPlan, rank: int, member: Membership) -> None:
    """Refuse to replace a worker whose loop would start over, as the launcher does."""
    script = plan.script
    if script is None or script.restart != "auto" or member.before is None:
        return
    if member.before.has_own_loop:
        raise SparseFleetError(
            f"worker {rank} is lost and not restarted, because it trains in a custom loop "
            "(fleet.step, Executor.run, RemoteStore), which a new process would start from the "
            "beginning; if that is acceptable, use --restart killed"
        )


@contextlib.contextmanager
def _reporting_own_loop(book: AddressBook, place: NodePlace, rank: int) -> Iterator[None]:
    """Notify the coordinator once this worker has declared a custom loop."""
    path = own_loop_file(place, rank)
    path.unlink(missing_ok=True)

    def look() -> None:
        if path.exists() and not book.who.has_own_loop:
            book.change(has_own_loop=True)

    book.before_each_request = look
    yield


def _provide(shards: Mapping[str, list[Any]], rank: int) -> None:
    """Make `ray.train.get_dataset_shard` return this rank's part, the same after a restart."""
    get_train_context().dataset_shard_provider = _Shards(shards, rank)


class _Shards:
    """Replaces Ray Train's provider, which would redistribute the records to a new worker."""

    def __init__(self, shards: Mapping[str, list[Any]], rank: int) -> None:
        self._shards = shards
        self._rank = rank

    def get_dataset_shard(self, dataset_info: Any) -> Any:
        name = dataset_info.dataset_name
        if name not in self._shards:
            raise KeyError(
                f"dataset {name!r} was not given to RayTrainer(datasets=...), which was given "
                f"{', '.join(sorted(self._shards))}"
            )
        return self._shards[name][self._rank].iterator()


def _end_with_the_job(reason: str) -> None:
    """Exit this process, which would otherwise wait a long time for servers that never come
    back."""
    print(f"sparsefleet: the job has failed: {reason}", file=sys.stderr, flush=True)
    os._exit(_LOST_JOB)
