"""Run a training function on Ray Train's workers, with sparsefleet servers."""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import ray
import ray.train

from sparsefleet.errors import ConfigError, PeerLostError
from sparsefleet.job_key import find_job_key
from sparsefleet.launch.job import given_key
from sparsefleet.launch.ray.coordinator import continued
from sparsefleet.launch.ray.report_rounds import PairedReports
from sparsefleet.launch.ray.running_servers import RunningServers
from sparsefleet.launch.ray.servers import FleetPlan, ScriptPlan, Servers
from sparsefleet.launch.ray.train_internals import (
    DataParallelTrainer,
    FailureDecision,
    FailurePolicy,
    RayTrainError,
)
from sparsefleet.launch.ray.worker_place import FleetBackendConfig

__all__ = ["RayTrainer", "connect", "make_plan", "run_plan"]

_STATE_FILE = "sparsefleet-job.json"
_START_TIMEOUT = "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"
_END_S = 90.0  # Ray may need a minute to notice that the node of a killed driver is lost
_LOOK_S = 0.5
_DEATHS = (ray.exceptions.RayError, RayTrainError)  # Ray's message about a lost worker


class RayTrainer:
    """Runs a training function on Ray Train workers, with servers that hold the tables.

    The function runs once on each worker, as in `ray.train.torch.TorchTrainer`; inside, `Trainer`
    and `sparsefleet.fleet` find the servers, and `ray.train.report`, `get_context`,
    `get_checkpoint` and `get_dataset_shard` work as usual. A worker that dies is replaced alone as
    often as `FailureConfig(max_failures=...)` allows; a server that dies is restarted by Ray.

    train_loop_per_worker: a function that takes no arguments, or `train_loop_config`.
    servers: the servers, or just their number.
    scaling_config, run_config: Ray Train's. num_workers must be fixed, since a job cannot grow.
    datasets: Ray Data datasets by name. Each is read once and split into equal parts, so that a
        worker that replaces another gets the same records in the same order.
    """

    def __init__(
        self,
        train_loop_per_worker: Callable[..., Any],
        *,
        servers: Servers | int = 1,
        train_loop_config: Mapping[str, Any] | None = None,
        scaling_config: Any = None,
        run_config: Any = None,
        datasets: Mapping[str, Any] | None = None,
    ) -> None:
        if not callable(train_loop_per_worker):
            raise ConfigError(
                "RayTrainer.train_loop_per_worker must be a training function, got "
                f"{type(train_loop_per_worker).__name__}"
            )
        self._function = train_loop_per_worker
        self._servers = Servers(servers) if isinstance(servers, int) else servers
        self._scaling = ray.train.ScalingConfig() if scaling_config is None else scaling_config
        self._run = ray.train.RunConfig() if run_config is None else run_config
        for name, value, kind in (
            ("servers", self._servers, Servers),
            ("scaling_config", self._scaling, ray.train.ScalingConfig),
            ("run_config", self._run, ray.train.RunConfig),
            ("train_loop_config", train_loop_config or {}, Mapping),
            ("datasets", datasets or {}, Mapping),
        ):
            if not isinstance(value, kind):
                or_int = " or an int" if kind is Servers else ""
                raise ConfigError(
                    f"RayTrainer.{name} must be a {kind.__name__}{or_int}, got "
                    f"{type(value).__name__}"
                )
        self._loop_config = None if train_loop_config is None else dict(train_loop_config)
        self._datasets = dict(datasets or {})
        count = self._scaling.num_workers
        if not isinstance(count, int) or count < 1:
            raise ConfigError(
                f"RayTrainer needs ScalingConfig(num_workers=N) with N >= 1, got {count!r}; the "
                "number of workers in a job is fixed"
            )

    def fit(self) -> Any:
        """Start the servers, train, stop the servers; return Ray Train's `Result`.

        Raises Ray Train's TrainingFailedError if a worker fails more often than allowed, and
        PeerLostError if a server is lost for good.
        """
        if not ray.is_initialized():
            workers = self._scaling.total_resources.get("CPU", 0.0)
            connect(self._servers.num_servers * self._servers.num_cpus + workers)
        plan = make_plan(self._servers, self._scaling.num_workers, self._run)
        return run_plan(
            plan,
            self._function,
            train_loop_config=self._loop_config,
            scaling_config=self._scaling,
            run_config=self._run,
            datasets=self._datasets,
        )


def connect(num_cpus: float, address: str = "", **settings: Any) -> Any:
    """Connect to a Ray cluster, or start one on this machine that has room for the job.

    address: of the cluster; by default, that of RAY_ADDRESS or of a cluster that runs on this
    machine. num_cpus: what the job asks Ray for. A new cluster has that many CPUs even if the
    machine has fewer, since nobody can add a node to it. Its processes run at normal priority: at
    Ray's default, `nice` 15, servers and workers that compete with other programs may not start in
    time.
    """
    os.environ.setdefault("RAY_worker_niceness", "0")
    if address or os.environ.get("RAY_ADDRESS", "local") != "local":
        return ray.init(address=address or None, **settings)
    if "RAY_ADDRESS" not in os.environ:
        with contextlib.suppress(ConnectionError):  # there is none
            return ray.init(address="auto", **settings)
    cpus = max(math.ceil(num_cpus), os.cpu_count() or 1)
    return ray.init(address="local", num_cpus=cpus, **settings)


def make_plan(servers: Servers, num_workers: int, run_config: Any, **more: Any) -> FleetPlan:
    """Return the plan for a new job, or for continuing a job whose driver was killed.

    The state needed to continue is in a file in the run's directory, if that is a local path.
    """
    place = os.path.join(os.path.expanduser(run_config.storage_path), run_config.name)
    state_file = ""
    if servers.is_restartable and "://" not in place and run_config.storage_filesystem is None:
        os.makedirs(place, exist_ok=True)
        state_file = os.path.join(os.path.abspath(place), _STATE_FILE)
    plan = FleetPlan(
        name=run_config.name,
        job_id=secrets.token_hex(16),
        job_key=_job_key(),
        servers=servers,
        num_workers=num_workers,
        state_file=state_file,
        **more,
    )
    found = continued(plan)
    if found.attempt:
        _require_ended(replace(found, attempt=found.attempt - 1))
        found = continued(plan)  # the run may have ended in the meantime
    return found


def _require_ended(before: FleetPlan) -> None:
    """Raise ConfigError if the run to be continued is still running.

    Ray takes a moment to stop the actors of a killed driver, and longer if its node is lost.
    """
    end = time.monotonic() + _END_S
    while any(
        actor["name"] == before.coordinator_name
        for actor in ray.util.list_named_actors(all_namespaces=True)
    ):
        if time.monotonic() > end:
            raise ConfigError(
                f"the run {before.name!r} is still running; wait until it ends, or use a "
                "different name"
            )
        time.sleep(_LOOK_S)


def _job_key() -> str:
    """Return the job key from the driver's environment, or a new key."""
    if given_key(os.environ, is_required=False):
        return find_job_key(()).decode("utf-8", "surrogateescape")
    return secrets.token_hex(32)


def run_plan(
    plan: FleetPlan, function: Callable[..., Any], *, datasets: Mapping[str, Any], **settings: Any
) -> Any:
    """Train with the plan's servers; `settings` are passed to Ray's DataParallelTrainer."""
    shards: dict[str, list[Any]] = {}
    if plan.servers.is_restartable:
        shards = {name: _parts(data, plan.num_workers) for name, data in datasets.items()}
    scaling = settings["scaling_config"]
    each_worker = scaling.resources_per_worker or {"GPU" if scaling.use_gpu else "CPU": 1.0}
    with (
        _start_timeout(plan.servers.start_timeout_s),
        RunningServers(plan, each_worker) as servers,
    ):
        backend = FleetBackendConfig(plan, servers.coordinator, shards)
        trainer = _FleetTrainer(
            function,
            backend_config=backend,
            datasets={} if shards else dict(datasets),
            **settings,
        )
        try:
            return trainer.fit()
        except ray.train.TrainingFailedError as error:
            reason = servers.failure()
            if reason:
                raise PeerLostError(reason) from error
            raise


@contextlib.contextmanager
def _start_timeout(seconds: float) -> Iterator[None]:
    """Give the workers of this job `seconds` to start, unless the user has set a different time.

    Ray Train's default of 60 s is too short where Python and torch start slowly, and after that
    time Ray Train would start all workers again.
    """
    if _START_TIMEOUT in os.environ:
        yield
        return
    os.environ[_START_TIMEOUT] = str(seconds)
    try:
        yield
    finally:
        del os.environ[_START_TIMEOUT]


def _parts(dataset: Any, count: int) -> list[Any]:
    """Split a dataset into `count` contiguous parts of nearly equal size, held by Ray.

    dataset: a dataset, or a function that returns one, as in Ray Train.
    """
    held = (dataset() if callable(dataset) else dataset).materialize()
    if count == 1:
        return [held]
    rows = held.count()
    return list(held.split_at_indices([rows * part // count for part in range(1, count)]))


class _FleetTrainer(DataParallelTrainer):  # type: ignore[misc]
    """Ray Train's trainer, which also checks the servers on failures and pairs reports by round."""

    def _initialize_and_run_controller(self, **settings: Any) -> Any:
        backend: FleetBackendConfig = self.backend_config
        settings["failure_policy"] = _FleetFailurePolicy(
            settings["failure_policy"], backend.coordinator, backend.plan.script
        )
        if backend.plan.servers.is_restartable:
            settings["callbacks"] = [*settings["callbacks"], PairedReports()]
        return super()._initialize_and_run_controller(**settings)


class _FleetFailurePolicy(FailurePolicy):  # type: ignore[misc]
    """Decides as Ray's policy does, unless restarting the worker cannot help."""

    def __init__(self, usual: Any, coordinator: Any, script: ScriptPlan | None) -> None:
        super().__init__(usual.failure_config)
        self._usual = usual
        self._coordinator = coordinator
        self._script = script

    def make_decision(self, training_failed_error: Any) -> Any:
        if ray.get(self._coordinator.failure.remote()):
            return FailureDecision.RAISE
        failures = getattr(training_failed_error, "worker_failures", {}).values()
        raised = any(not isinstance(error, _DEATHS) for error in failures)
        if raised and self._script is not None and self._script.restart != "failed":
            return FailureDecision.RAISE
        return self._usual.make_decision(training_failed_error)
