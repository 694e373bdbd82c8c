"""Records and files between real workers and servers, all inside the test process."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest
from tests.support.fleet_workers import run_fleet
from tests.support.servers import JOB_KEY, NativeServers
from tests.unit.data.data_files import ONE_ID, read_ids, write_ids

from sparsefleet.data import MemoryData, Reader
from sparsefleet.errors import ConfigError, PeerLostError
from sparsefleet.fleet import Fleet
from sparsefleet.fleet.meeting import MailExchange


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[NativeServers]:
    monkeypatch.setenv("SPARSEFLEET_JOB_KEY", JOB_KEY.decode())
    with NativeServers(2) as running:
        yield running


def ids_in(data: MemoryData) -> list[int]:
    return [key for batch in data for key in batch["id"].tolist()]


@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_a_global_shuffle_deals_each_record_to_one_worker(
    servers: NativeServers, tmp_path: Path, num_workers: int
) -> None:
    total = 3000
    for index in range(num_workers):
        write_ids(tmp_path / f"part-{index}", range(index * total, (index + 1) * total))

    def work(fleet: Fleet) -> list[list[int]]:
        data = MemoryData(Reader(tmp_path / f"part-{fleet.worker_index()}", ONE_ID, 100))
        found = []
        for seed in (1, 2):
            data.global_shuffle(fleet, seed=seed, block_records=64)
            found.append(ids_in(data))
        return found

    outcomes = run_fleet(servers, num_workers, work)
    for epoch in range(2):
        found = [outcome[epoch] for outcome in outcomes]
        assert sorted(chain(*found)) == list(range(num_workers * total))
        assert all(abs(len(part) - total) <= 2 * num_workers for part in found)
    if num_workers > 1:
        assert set(outcomes[0][0]) != set(outcomes[0][1])


def test_the_outcome_does_not_depend_on_time(servers: NativeServers, tmp_path: Path) -> None:
    for index in range(2):
        write_ids(tmp_path / f"part-{index}", range(index * 1000, index * 1000 + 1000))

    def work(fleet: Fleet) -> list[int]:
        data = MemoryData(Reader(tmp_path / f"part-{fleet.worker_index()}", ONE_ID, 100))
        data.global_shuffle(fleet, seed=5, block_records=10)
        return ids_in(data)

    assert run_fleet(servers, 2, work) == run_fleet(servers, 2, work)


def test_a_worker_that_fails_in_the_midst_ends_it_for_all(servers: NativeServers) -> None:
    def work(fleet: Fleet) -> str:
        exchange = fleet.open_exchange()
        if exchange.rank == 1:
            exchange.fail(MemoryError("no room"))
            return "failed"
        with pytest.raises(PeerLostError, match="worker 1 abandoned .*MemoryError: no room"):
            exchange.receive()
        with pytest.raises(PeerLostError, match="worker 1 abandoned .*MemoryError: no room"):
            exchange.send(1, b"letter")
        if exchange.rank == 0:
            with pytest.raises(PeerLostError, match="MemoryError: no room"):
                exchange.close()
        return "told"

    assert run_fleet(servers, 3, work) == ["told", "failed", "told"]


def test_letters_are_limited_and_senders_wait(
    servers: NativeServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Worker 0 sends worker 1 more mail than a box holds, while worker 1 receives it."""
    letter = bytes(8 << 20)
    sizes = []

    def work(fleet: Fleet) -> None:
        exchange: MailExchange = fleet.open_exchange()
        if exchange.rank == 0:
            for _ in range(6):
                exchange.send(1, letter)
        else:
            while sum(sizes) < 6 * len(letter):
                sizes.extend(len(one) for one in exchange.receive())
        exchange.close()

    run_fleet(servers, 2, work)
    assert sizes == [len(letter)] * 6


@pytest.mark.parametrize("threads", [1, 2])
def test_files_go_to_whoever_is_free_each_once_per_epoch(
    servers: NativeServers, tmp_path: Path, threads: int
) -> None:
    for index in range(7):
        write_ids(tmp_path / f"part-{index}", range(index * 10, index * 10 + 10))

    def work(fleet: Fleet) -> list[list[int]]:
        sharding = fleet.sharding("train")
        reader = Reader(tmp_path / "part-*", ONE_ID, 4, threads=threads, sharding=sharding)
        return [read_ids(reader) for _ in range(3)]

    outcomes = run_fleet(servers, 2, work)
    for epoch in range(3):
        assert sorted(chain(*(outcome[epoch] for outcome in outcomes))) == list(range(70))


def test_two_readers_at_once_under_one_name_are_refused(
    servers: NativeServers, tmp_path: Path
) -> None:
    path = write_ids(tmp_path / "part", range(10))

    def work(fleet: Fleet) -> list[int]:
        with Reader(path, ONE_ID, 4, sharding=fleet.sharding("train")) as first:
            begun = iter(first)
            another = Reader(path, ONE_ID, 4, sharding=fleet.sharding("train"))
            with pytest.raises(ConfigError, match="give each its own name"):
                iter(another)
            del begun
        return read_ids(another)

    assert sorted(chain(*run_fleet(servers, 2, work))) == list(range(10))


def test_readers_made_one_after_the_other_read_the_epochs_of_one_list(
    servers: NativeServers, tmp_path: Path
) -> None:
    path = write_ids(tmp_path / "part", range(10))

    def work(fleet: Fleet) -> list[list[int]]:
        return [
            read_ids(Reader(path, ONE_ID, 4, sharding=fleet.sharding("train"))) for _ in range(2)
        ]

    outcomes = run_fleet(servers, 2, work)
    for epoch in range(2):
        assert sorted(chain(*(outcome[epoch] for outcome in outcomes))) == list(range(10))


def test_without_servers_the_only_worker_reads_everything(tmp_path: Path) -> None:
    path = write_ids(tmp_path / "part", range(10))
    fleet = Fleet()
    fleet.init()
    reader = Reader(path, ONE_ID, 4, sharding=fleet.sharding())
    with pytest.raises(RuntimeError, match="no model yet"):
        read_ids(reader)
