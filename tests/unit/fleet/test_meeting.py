"""Workers that meet through a store."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.servers import NativeServers

from sparsefleet.errors import ConfigError, DeadlineError
from sparsefleet.fleet.meeting import Meeting
from sparsefleet.fleet.role_info import RoleInfo


def worker(index: int, servers: NativeServers, worker_num: int = 3) -> RoleInfo:
    return RoleInfo(
        kind="worker",
        index=index,
        worker_num=worker_num,
        server_endpoints=tuple(servers.endpoints),
    )


def test_gather_gives_everybodys_bytes_by_rank_of_any_size() -> None:
    def gather(index: int, servers: NativeServers) -> tuple[list[bytes], list[bytes]]:
        with servers.connect(name=f"worker-{index}") as store:
            meeting = Meeting(store, worker(index, servers), wait_s=30.0)
            large = meeting.all_gather(bytes([index]) * (index * 100_000))
            meeting.barrier()
            return large, meeting.all_gather(b"%d" % index)

    with NativeServers(2) as servers, ThreadPoolExecutor(3) as pool:
        results = list(pool.map(lambda index: gather(index, servers), range(3)))
    for large, small in results:
        assert [len(part) for part in large] == [0, 100_000, 200_000]
        assert large[2] == b"\x02" * 200_000
        assert small == [b"0", b"1", b"2"]


def test_gather_without_the_others_ends_at_its_deadline() -> None:
    with NativeServers(1) as servers, servers.connect() as store:
        meeting = Meeting(store, worker(0, servers), wait_s=0.3)
        with pytest.raises(DeadlineError, match="fleet/job/gather/1/1"):
            meeting.all_gather(b"mine")


def test_gather_takes_bytes_only() -> None:
    with NativeServers(1) as servers, servers.connect() as store:
        with pytest.raises(ConfigError, match="got str"):
            Meeting(store, worker(0, servers)).all_gather("text")  # type: ignore[arg-type]
