"""Workers of one job as threads of the test process, each with its own program."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from tests.support.fleet_workers import ENDED_WITHIN_S, HasEndpoints

from sparsefleet import fluid
from sparsefleet.fluid.fleet import DistributedStrategy, Role, UserDefinedRoleMaker
from sparsefleet.fluid.fleet.program_fleet import ProgramFleet

Outcome = TypeVar("Outcome")
Feed = dict[str, NDArray[Any]]


@dataclass
class Network:
    """A program with its loss."""

    main: fluid.Program
    startup: fluid.Program
    loss: fluid.Variable

    @classmethod
    def build(cls, layers: Callable[[], fluid.Variable], seed: int = 3) -> Network:
        """Use the same names each time, as the processes of a job do."""
        main, startup = fluid.Program(), fluid.Program()
        main.random_seed = startup.random_seed = seed
        with fluid.program_guard(main, startup), fluid.unique_name.guard():
            return cls(main, startup, layers())


@dataclass
class ProgramWorker:
    """A worker with its own scope."""

    fleet: ProgramFleet
    network: Network
    scope: fluid.Scope
    executor: fluid.Executor

    def run(self, feed: Feed, fetch: Any = None, program: fluid.Program | None = None) -> list[Any]:
        return self.executor.run(
            program or self.network.main, feed=feed, fetch_list=fetch, scope=self.scope
        )

    def value(self, name: str) -> NDArray[Any]:
        found = self.scope.find_var(name)
        assert found is not None
        return np.array(found.get_tensor())


def ids_and_numbers() -> fluid.Variable:
    """Build a table, two layers and a squared error."""
    ids = fluid.layers.data("ids", [1], dtype="int64")
    x = fluid.layers.data("x", [3])
    y = fluid.layers.data("y", [1])
    rows = fluid.layers.embedding(ids, [50, 4], is_sparse=True)
    hidden = fluid.layers.fc(fluid.layers.concat([x, rows], axis=1), 5, act="tanh")
    return fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(hidden, 1), y))


def feeds_of(rank: int, steps: int, batch: int = 8) -> list[Feed]:
    """Return the batches of one worker."""
    rng = np.random.default_rng(rank)
    made = []
    for _ in range(steps):
        ids = rng.integers(0, 50, (batch, 1))
        x = rng.normal(size=(batch, 3)).astype(np.float32)
        y = (x.sum(1, keepdims=True) + ids % 3).astype(np.float32)
        made.append({"ids": ids, "x": x, "y": y})
    return made


def joined(feeds: list[Feed]) -> Feed:
    """Join the batches of all workers into one."""
    return {name: np.concatenate([feed[name] for feed in feeds]) for name in feeds[0]}


def make_worker(
    fleet: ProgramFleet,
    optimizer: Callable[[], Any],
    strategy: Callable[[], DistributedStrategy | None] = lambda: None,
    layers: Callable[[], fluid.Variable] = ids_and_numbers,
) -> ProgramWorker:
    """Return its program minimized by its fleet, which knows its role."""
    network = Network.build(layers)
    with fluid.program_guard(network.main, network.startup), fluid.unique_name.guard("opt_"):
        fleet.distributed_optimizer(optimizer(), strategy()).minimize(
            network.loss, startup_program=network.startup
        )
    return ProgramWorker(fleet, network, fluid.Scope(), fluid.Executor())


def fleet_of(servers: HasEndpoints, index: int, num_workers: int) -> ProgramFleet:
    fleet = ProgramFleet()
    fleet.init(UserDefinedRoleMaker(index, Role.WORKER, num_workers, servers.endpoints))
    return fleet


def run_workers(
    servers: HasEndpoints,
    num_workers: int,
    work: Callable[[ProgramWorker], Outcome],
    optimizer: Callable[[], Any],
    strategy: Callable[[], DistributedStrategy | None] = lambda: None,
    layers: Callable[[], fluid.Variable] = ids_and_numbers,
) -> list[Outcome]:
    """Return what `work` returned in each, by rank; each is stopped afterwards."""
    workers = [
        make_worker(fleet_of(servers, index, num_workers), optimizer, strategy, layers)
        for index in range(num_workers)
    ]

    def run(worker: ProgramWorker) -> Outcome:
        worker.fleet.init_worker()
        worker.executor.run(worker.network.startup, scope=worker.scope)
        try:
            return work(worker)
        finally:
            worker.fleet.stop_worker()

    with ThreadPoolExecutor(num_workers) as pool:
        running = [pool.submit(run, worker) for worker in workers]
        return [future.result(ENDED_WITHIN_S) for future in running]


def run_alone(
    optimizer: Callable[[], Any],
    feeds: list[Feed],
    layers: Callable[[], fluid.Variable] = ids_and_numbers,
) -> tuple[list[float], fluid.Scope, Network]:
    """Train the same program in one process: its losses, what it trained, and itself."""
    network = Network.build(layers)
    with fluid.program_guard(network.main, network.startup), fluid.unique_name.guard("opt_"):
        optimizer().minimize(network.loss)
    scope, executor = fluid.Scope(), fluid.Executor()
    executor.run(network.startup, scope=scope)
    losses = [
        float(executor.run(network.main, feed, [network.loss], scope=scope)[0].reshape(-1)[0])
        for feed in feeds
    ]
    return losses, scope, network
