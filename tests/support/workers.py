"""Workers of a job as threads of the test process: real servers, real sockets."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest
from tests.support.servers import JOB_KEY, NativeServers

from sparsefleet.fleet.role_info import RoleInfo

Outcome = TypeVar("Outcome")


def run_workers(
    work: Callable[[RoleInfo], Outcome],
    *,
    num_workers: int,
    num_servers: int,
    monkeypatch: pytest.MonkeyPatch,
) -> list[Outcome]:
    """Return what `work(role)` returned in each worker, by rank; the first exception is raised."""
    monkeypatch.setenv("SPARSEFLEET_JOB_KEY", JOB_KEY.decode())
    with NativeServers(num_servers) as servers, ThreadPoolExecutor(num_workers) as pool:
        roles = [
            RoleInfo(
                kind="worker",
                index=index,
                worker_num=num_workers,
                server_endpoints=tuple(servers.endpoints),
            )
            for index in range(num_workers)
        ]
        return list(pool.map(work, roles))
