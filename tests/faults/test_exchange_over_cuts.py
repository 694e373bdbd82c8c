"""Workers share records and files over connections that break at any byte."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import chain
from pathlib import Path

import pytest
from tests.faults.cutting_proxy import CuttingProxy
from tests.support.fleet_workers import run_fleet
from tests.support.servers import JOB_KEY, NativeServers
from tests.unit.data.data_files import ONE_ID, read_ids, write_ids

from sparsefleet.data import MemoryData, Reader
from sparsefleet.fleet import Fleet

CUTS = 40


class Proxies:
    """A proxy in front of each server."""

    def __init__(self, proxies: list[CuttingProxy]) -> None:
        self.proxies = proxies

    @property
    def endpoints(self) -> list[str]:
        return [proxy.endpoint for proxy in self.proxies]


@pytest.mark.parametrize("is_late", [False, True])
def test_no_record_and_no_file_is_lost_or_doubled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    monkeypatch.setenv("SPARSEFLEET_JOB_KEY", JOB_KEY.decode())
    for index in range(4):
        write_ids(tmp_path / f"part-{index}", range(index * 1000, index * 1000 + 1000))
    files = sorted(map(str, tmp_path.glob("part-*")))

    def work(fleet: Fleet) -> tuple[list[int], list[int]]:
        data = MemoryData(Reader(fleet.split_files(files), ONE_ID, 100))
        data.global_shuffle(fleet, seed=1, block_records=25)
        reader = Reader(files, ONE_ID, 50, sharding=fleet.sharding("train"))
        return [key for batch in data for key in batch["id"].tolist()], read_ids(reader)

    with NativeServers(2) as servers, ExitStack() as stack:
        proxies = [
            stack.enter_context(
                CuttingProxy(
                    server.port, cuts=CUTS, bytes_before_cut=(2000, 12_000), is_late=is_late
                )
            )
            for server in servers.servers
        ]
        outcomes = run_fleet(Proxies(proxies), 2, work)
        assert sum(proxy.cuts for proxy in proxies) < 2 * CUTS, "no connection was ever cut"
    for which in range(2):
        assert sorted(chain(*(outcome[which] for outcome in outcomes))) == list(range(4000))
