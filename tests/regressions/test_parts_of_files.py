"""Splitting files in jobs whose numbers of servers, workers and files do not match."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest
from tests.support.fleet_workers import run_fleet
from tests.support.servers import JOB_KEY, NativeServers
from tests.unit.data.data_files import ONE_ID, read_ids, write_ids

from sparsefleet import fluid
from sparsefleet.data import MemoryData, Reader
from sparsefleet.fleet import Fleet, RoleInfo


def test_a_server_reads_a_script_as_far_as_to_serve(tmp_path: Path) -> None:
    write_ids(tmp_path / "part-0", range(3))
    fleet = Fleet()
    endpoints = ("127.0.0.1:9001", "127.0.0.1:9002")
    fleet.init(RoleInfo(kind="server", index=1, server_endpoints=endpoints))
    assert (fleet.worker_index(), fleet.server_index()) == (0, 1)
    files = [str(tmp_path / "part-0")]
    place = {"worker_index": fleet.worker_index(), "worker_num": fleet.worker_num()}
    assert Reader(files, ONE_ID, 2, **place).files == files
    assert Reader(fleet.split_files(files), ONE_ID, 2).files == files


@pytest.mark.parametrize("door", ["data", "fluid"])
def test_a_worker_without_files_gets_records_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, door: str
) -> None:
    monkeypatch.setenv("SPARSEFLEET_JOB_KEY", JOB_KEY.decode())
    write_ids(tmp_path / "part", range(100))

    def work(fleet: Fleet) -> list[int]:
        files = fleet.split_files([str(tmp_path / "part")])
        if door == "data":
            reader = Reader(files, ONE_ID, 10)
            assert len(read_ids(reader)) == (0 if fleet.worker_index() else 100)
            data = MemoryData(reader)
            data.global_shuffle(fleet, seed=1)
            return [key for batch in data for key in batch["id"].tolist()]
        dataset = fluid.InMemoryDataset()
        dataset.set_use_var([fluid.data("id", [None, 1], "int64")])
        dataset.set_filelist(list(files))
        dataset.load_into_memory()
        assert dataset.get_memory_data_size() == (0 if fleet.worker_index() else 100)
        dataset.global_shuffle(fleet, seed=1)
        return [key for feed in dataset for key in feed["id"][:, 0].tolist()]

    with NativeServers(1) as servers:
        outcomes = run_fleet(servers, 2, work)
    assert sorted(chain(*outcomes)) == list(range(100))
    assert all(outcomes)


def test_a_dataset_without_files_has_an_empty_pass_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    dataset = fluid.QueueDataset()
    dataset.set_use_var([fluid.data("id", [None, 1], "int64")])
    dataset.set_filelist([])
    assert "this worker has no records" in caplog.text
    assert list(dataset) == []
