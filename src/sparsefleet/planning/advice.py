"""Sizes a job: servers, workers, memory, network, disk, price, and the best mode."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from sparsefleet.errors import ConfigError
from sparsefleet.field_checks import require_int, require_not_negative, require_positive
from sparsefleet.optim import SGD
from sparsefleet.planning.costs import MachineCosts
from sparsefleet.planning.fleet_model import Prediction, predict
from sparsefleet.planning.table_memory import RowBytes, find_optimizer, measure_row_bytes
from sparsefleet.planning.workload import MODES, FleetShape, JobShape, gbit
from sparsefleet.store import RowDtype

__all__ = ["Advice", "ModePlan", "PlanRequest", "advise_job"]

_USABLE_MEMORY = 0.8
"""The share of a machine's memory for tables; requests, snapshots and the system need the rest."""
_MOST_WORKERS = 20_000
_MOST_SERVERS = 2_000
_ROUNDS = 12
_GAIN = 1.01  # stop enlarging the fleet once the rate grows by less than this
_BUSY = 0.75
_WORTH = 1.25  # how much more than the cheapest a stricter mode may cost
_STRICT_FIRST = ("sync", "hybrid", "half_async", "async", "geo")
"""Modes ordered by how fresh their values are, freshest first."""
_LOG_AND_SNAPSHOTS = 3
"""A durable server's directory must hold two snapshots, and a log the size of one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanRequest:
    """A description of the job and of the machines available to it."""

    rows: float
    """Total number of rows in all tables."""
    dim: int
    """Floats per row."""
    optimizer: str = "adagrad"
    row_dtype: RowDtype = "float32"
    """How the tables store their rows."""
    batch: int = 512
    """Examples in one worker's mini-batch."""
    examples_per_s: float = 100_000.0
    """The target rate for the whole job."""
    ids_per_example: float = 26.0
    distinct: float = 0.4
    """Distinct ids in a mini-batch, as a fraction of all its ids."""
    growth: float = 0.6
    """n mini-batches have `n ** growth` times the distinct ids of one."""
    dense: float = 430_000.0
    """Number of parameters outside the tables; the default is the benchmarked CTR-DNN's."""
    compute_us: float | None = None
    """A worker's CPU time per example; None estimates it from ids and dense parameters."""
    cores: int = 16
    """Cores per machine."""
    memory_gib: float = 64.0
    """Memory per machine."""
    network_gbit: float = 25.0
    """Network bandwidth per machine."""
    price_per_hour: float | None = None
    """Price per machine; None omits prices."""
    headroom: float = 0.3
    """Expected growth, as a fraction of `rows`."""
    modes: Sequence[str] = MODES

    def __post_init__(self) -> None:
        for name in ("rows", "examples_per_s", "ids_per_example", "distinct", "memory_gib"):
            require_positive(self, name)
        require_positive(self, "network_gbit")
        for name in ("growth", "dense", "headroom"):
            require_not_negative(self, name)
        for name in ("compute_us", "price_per_hour"):
            if getattr(self, name) is not None:
                require_positive(self, name)
        require_int(self, "dim", 1, 65_536)
        require_int(self, "batch", 1, 10**7)
        require_int(self, "cores", 1, 4096)
        if self.distinct > 1:
            raise ConfigError(f"PlanRequest.distinct must be at most 1, got {self.distinct:g}")
        for mode in self.modes:
            if mode not in MODES:
                raise ConfigError(f"each mode must be one of {', '.join(MODES)}, got {mode!r}")

    def job(self, costs: MachineCosts) -> JobShape:
        """Return the shape of one training step of a worker."""
        ids = self.batch * self.ids_per_example
        if self.compute_us is not None:
            compute_s = self.compute_us * 1e-6 * self.batch
        else:
            compute_s = costs.worker.compute_s(
                batch=self.batch, ids=ids, floats=ids * self.dim, dense=self.dense
            )
        return JobShape(
            batch=self.batch,
            ids=ids,
            keys=min(ids * self.distinct, self.rows),
            row_floats=self.dim,
            dense=self.dense,
            compute_s=compute_s,
            growth=min(self.growth, 1.0),
            rows=self.rows,
            merges_freely=isinstance(find_optimizer(self.optimizer), SGD),
            variation=costs.worker.variation,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ModePlan:
    """The resources that one mode needs, or why the mode cannot be used."""

    mode: str
    workers: int = 0
    servers: int = 0
    worker_machines: int = 0
    predicted: Prediction | None = None
    price_per_hour: float | None = None
    network_gbit_per_server: float = 0.0
    """Traffic in both directions combined."""
    reason: str = ""
    """The limiting factor, or why the mode cannot be used."""

    @property
    def machines(self) -> int:
        """Return the number of machines for servers and workers."""
        return self.servers + self.worker_machines

    @property
    def is_possible(self) -> bool:
        return self.predicted is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    """The sizes, plans and recommendation that answer a `PlanRequest`."""

    request: PlanRequest
    machine: MachineCosts
    job: JobShape
    row: RowBytes
    table_bytes: float
    """Memory for all tables, including room to grow."""
    servers_for_memory: int
    disk_bytes_per_server: float
    """Disk space for the log and snapshots of a durable server."""
    log_bytes_per_s: float
    """Bytes per second over all servers, at the target rate, in a mode that pushes every step."""
    modes: Sequence[ModePlan] = field(default=())
    recommended: str = ""
    reasons: Sequence[str] = field(default=())

    def plan_of(self, mode: str) -> ModePlan:
        """Return the plan for one mode."""
        return next(plan for plan in self.modes if plan.mode == mode)


def advise_job(request: PlanRequest, machine: MachineCosts) -> Advice:
    """Return the resources that the job needs on the given machines, and the best mode for it."""
    optimizer = find_optimizer(request.optimizer)
    row = measure_row_bytes(request.dim, optimizer, request.row_dtype)
    job = request.job(machine)
    table_bytes = request.rows * (1 + request.headroom) * row.memory
    usable = request.memory_gib * 2**30 * _USABLE_MEMORY
    for_memory = max(1, math.ceil(table_bytes / usable))
    if for_memory > _MOST_SERVERS:
        raise ConfigError(
            f"{request.rows:g} rows of {row.memory:.0f} bytes need {for_memory:,} servers with "
            f"{request.memory_gib:g} GiB, more than {_MOST_SERVERS:,}: increase --memory or "
            "reduce --rows"
        )
    plans = [_plan_mode(mode, request, job, machine, for_memory) for mode in request.modes]
    possible = [plan for plan in plans if plan.is_possible]
    recommended, reasons = _recommend(possible)
    servers = next((p.servers for p in possible if p.mode == recommended), for_memory)
    saved = request.rows * (1 + request.headroom) * row.snapshot / servers
    steps_per_s = request.examples_per_s / request.batch
    logged = job.keys * row.log + job.dense * 4
    return Advice(
        request=request,
        machine=machine,
        job=job,
        row=row,
        table_bytes=table_bytes,
        servers_for_memory=for_memory,
        disk_bytes_per_server=saved * _LOG_AND_SNAPSHOTS + 2**30,
        log_bytes_per_s=steps_per_s * logged,
        modes=plans,
        recommended=recommended,
        reasons=reasons,
    )


def _plan_mode(
    mode: str, request: PlanRequest, job: JobShape, machine: MachineCosts, for_memory: int
) -> ModePlan:
    """Find the smallest numbers of workers and servers that reach the target rate."""
    if mode == "geo" and not job.merges_freely:
        return ModePlan(mode=mode, reason=f"geo needs plain SGD, got {request.optimizer}")
    target = request.examples_per_s
    alone = request.batch / job.compute_s
    workers, servers = min(max(1, math.ceil(target / alone)), _MOST_WORKERS), for_memory
    found = predict(mode, job, _fleet(request, workers, servers), machine)
    for _ in range(_ROUNDS):
        if found.examples_per_s >= target:
            break
        tried = []
        for more in _larger(workers, servers, found, target):
            if more[0] <= _MOST_WORKERS and more[1] <= _MOST_SERVERS:
                tried.append((predict(mode, job, _fleet(request, *more), machine), *more))
        if not tried:
            break
        before = found.examples_per_s
        found, workers, servers = max(
            tried, key=lambda one: min(one[0].examples_per_s, target) / _machines(request, *one[1:])
        )
        if found.examples_per_s < before * _GAIN:
            break
    if found.examples_per_s < target:
        return ModePlan(
            mode=mode,
            reason=f"{target:,.0f} examples/s is out of reach: {workers:,} workers and "
            f"{servers:,} servers train {found.examples_per_s:,.0f}",
        )
    machines = math.ceil(workers / request.cores)
    price = request.price_per_hour
    return ModePlan(
        mode=mode,
        workers=workers,
        servers=servers,
        worker_machines=machines,
        predicted=found,
        price_per_hour=None if price is None else price * (machines + servers),
        network_gbit_per_server=8e-9 * found.bytes_per_example * found.examples_per_s / servers,
        reason=_limit(found, servers, for_memory),
    )


def _larger(workers: int, servers: int, found: Prediction, target: float) -> list[tuple[int, int]]:
    """Return larger fleets to try, with more workers and, if workers wait, more servers."""
    missing = min(target / found.examples_per_s, 2.0)
    more_workers = max(workers + 1, math.ceil(workers * missing * 1.005))
    if found.worker_busy >= _BUSY:
        return [(more_workers, servers)]
    return [(more_workers, servers), (workers, max(servers + 1, math.ceil(servers * missing)))]


def _machines(request: PlanRequest, workers: int, servers: int) -> int:
    return math.ceil(workers / request.cores) + servers


def _fleet(request: PlanRequest, workers: int, servers: int) -> FleetShape:
    return FleetShape(
        workers=workers,
        servers=servers,
        network_bytes_per_s=gbit(request.network_gbit),
        worker_cores=request.cores,
        server_cores=request.cores,
    )


def _limit(found: Prediction, servers: int, for_memory: int) -> str:
    """Describe what limits the rate and the number of servers."""
    if found.worker_busy >= _BUSY:
        limit = f"workers compute {found.worker_busy:.0%} of the time"
    elif found.network_busy >= _BUSY:
        limit = f"the network is {found.network_busy:.0%} busy"
    else:
        limit = f"workers wait {1 - found.worker_busy:.0%} of the time"
    return f"{limit}; servers: {'memory' if servers == for_memory else 'load'}"


def _recommend(possible: Sequence[ModePlan]) -> tuple[str, list[str]]:
    if not possible:
        return "", ["no mode reaches the rate: lower --examples-per-second, or use larger machines"]
    cheapest = min(possible, key=lambda plan: plan.machines)
    strict = sorted(possible, key=lambda plan: _STRICT_FIRST.index(plan.mode))
    chosen = next(plan for plan in strict if plan.machines <= _WORTH * cheapest.machines)
    reasons = [_WHY[chosen.mode]]
    if chosen.mode == cheapest.mode:
        reasons.append(f"it needs the fewest machines, {chosen.machines}")
    else:
        reasons.append(
            f"it needs {chosen.machines} machines; {cheapest.mode}, the cheapest, needs "
            f"{cheapest.machines}, too small a saving to accept staler values"
        )
    stricter = strict[: strict.index(chosen)]
    reasons += [
        f"{plan.mode} is stricter but needs {plan.machines} machines ({plan.reason})"
        for plan in stricter
    ]
    if chosen.mode in ("async", "geo"):
        reasons.append(
            "stale values can cost quality: compare this mode with local training on your own "
            "data by running `sparsefleet plan --try train.py`"
        )
    return chosen.mode, reasons


_WHY = {
    "sync": "sync: all workers take each step together, so results do not depend on timing",
    "hybrid": "hybrid: dense parameters as in sync, rows in the background",
    "half_async": "half_async: every step sees its own last update, and no worker waits for others",
    "async": "async: no worker waits, and gradients are sent in the background",
    "geo": "geo: workers train copies and exchange differences, which needs the least traffic",
}
