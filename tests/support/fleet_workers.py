"""Workers of one job as threads of the test process, each with its Fleet; real servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Protocol, TypeVar

from torch import nn

from sparsefleet import optim
from sparsefleet.fleet import Fleet, RoleInfo

Outcome = TypeVar("Outcome")
ENDED_WITHIN_S = 120.0


class HasEndpoints(Protocol):
    """Servers, or proxies in front of them."""

    @property
    def endpoints(self) -> list[str]: ...


def fleet_of(servers: HasEndpoints, index: int, num_workers: int) -> Fleet:
    """Return a fleet with a role and without a model."""
    fleet = Fleet()
    fleet.init(
        RoleInfo(
            kind="worker",
            index=index,
            worker_num=num_workers,
            server_endpoints=tuple(servers.endpoints),
        )
    )
    return fleet


@contextmanager
def begun(fleet: Fleet) -> Iterator[Fleet]:
    """Yield the fleet, started with a small model."""
    fleet.distribute(nn.Linear(1, 1), optim.SGD(lr=0.1), "async")
    fleet.init_worker()
    try:
        yield fleet
    finally:
        fleet.stop_worker()


def run_fleet(
    servers: HasEndpoints, num_workers: int, work: Callable[[Fleet], Outcome]
) -> list[Outcome]:
    """Return what `work` returned in each worker, by rank; the first exception is raised."""

    def run(index: int) -> Outcome:
        with begun(fleet_of(servers, index, num_workers)) as fleet:
            return work(fleet)

    with ThreadPoolExecutor(num_workers) as pool:
        running = [pool.submit(run, index) for index in range(num_workers)]
        return [future.result(ENDED_WITHIN_S) for future in running]
