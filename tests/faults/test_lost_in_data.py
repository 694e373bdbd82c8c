"""A worker or server is lost while workers share data: the others get an error, nobody hangs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.fleet_workers import begun, fleet_of
from tests.support.servers import JOB_KEY, NativeServers
from tests.unit.data.data_files import ONE_ID, read_ids, write_ids

from sparsefleet.data import Reader, ReaderConfig
from sparsefleet.errors import PeerLostError, RpcError
from sparsefleet.fleet import Fleet

SCRIPT = Path(__file__).with_name("doomed_worker.py")
ENDED_WITHIN_S = 60.0


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[NativeServers]:
    monkeypatch.setenv("SPARSEFLEET_JOB_KEY", JOB_KEY.decode())
    with NativeServers(2, peer_timeout_s=5.0) as running:  # workers report every 2 s
        yield running


class DoomedWorker:
    """Worker 1 in a separate process."""

    def __init__(self, how: str, servers: NativeServers, files: str = "") -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), how, ",".join(servers.endpoints), files],
            stdout=subprocess.PIPE,
            env=dict(os.environ),
        )
        self.taken: list[int] = []

    def kill_when_ready(self) -> None:
        assert self.process.stdout is not None
        for raw in self.process.stdout:
            word, _, rest = raw.decode().strip().partition(" ")
            if word == "taken":
                self.taken = json.loads(rest)
            if word == "ready":
                break
        self.process.kill()
        self.process.wait(ENDED_WITHIN_S)


@contextmanager
def doomed(*words: Any) -> Iterator[DoomedWorker]:
    worker = DoomedWorker(*words)
    killing = threading.Thread(target=worker.kill_when_ready, daemon=True)
    killing.start()
    try:
        yield worker
    finally:
        worker.process.kill()
        killing.join(ENDED_WITHIN_S)
        assert worker.process.stdout is not None
        worker.process.stdout.close()


@contextmanager
def survivor(servers: NativeServers) -> Iterator[Fleet]:
    """Yield worker 0, which cannot say goodbye to a worker that is gone."""
    fleet = fleet_of(servers, 0, 2)
    with begun(fleet):
        yield fleet


def reader_of(folder: Path, fleet: Fleet) -> Reader:
    """Return a reader that reads little ahead, so that files are left for the other worker."""
    config = ReaderConfig(queue_batches=1)
    sharding = fleet.sharding("train")
    return Reader(folder / "part-*", ONE_ID, 4, config=config, sharding=sharding)


def test_a_killed_worker_ends_the_wait_for_its_mail(servers: NativeServers) -> None:
    with doomed("exchange", servers), survivor(servers) as fleet:
        exchange = fleet.open_exchange()
        assert exchange.receive() == [b"the only letter"]
        with pytest.raises(PeerLostError, match="worker-1"):
            exchange.receive()
        with pytest.raises(PeerLostError, match="worker-1"):
            exchange.send(1, b"too late")


@pytest.mark.job
def test_a_killed_worker_ends_the_wait_for_the_others_end(servers: NativeServers) -> None:
    with doomed("exchange", servers), survivor(servers) as fleet:
        exchange = fleet.open_exchange()
        with pytest.raises(PeerLostError, match="worker-1"):
            exchange.close()


def test_a_server_that_goes_ends_an_exchange(servers: NativeServers) -> None:
    fleets = [fleet_of(servers, index, 2) for index in range(2)]
    outcomes: dict[int, BaseException] = {}
    opened = threading.Barrier(3)

    def work(index: int) -> None:
        try:
            with begun(fleets[index]) as fleet:
                exchange = fleet.open_exchange()
                opened.wait(ENDED_WITHIN_S)
                exchange.receive()
        except BaseException as error:
            outcomes[index] = error

    workers = [threading.Thread(target=work, args=(index,), daemon=True) for index in range(2)]
    for worker in workers:
        worker.start()
    opened.wait(ENDED_WITHIN_S)
    servers.loops[1].stop()
    servers.servers[1].stop()
    for worker in workers:
        worker.join(ENDED_WITHIN_S)
        assert not worker.is_alive(), "a worker hangs"
    assert sorted(outcomes) == [0, 1]
    assert all(isinstance(error, RpcError) for error in outcomes.values()), outcomes


def test_files_of_a_killed_worker_end_the_epoch_with_its_name(
    servers: NativeServers, tmp_path: Path
) -> None:
    for index in range(6):
        write_ids(tmp_path / f"part-{index}", range(index * 10, index * 10 + 10))
    with doomed("sharding", servers, str(tmp_path / "part-*")) as worker:
        with survivor(servers) as fleet:
            reader = reader_of(tmp_path, fleet)
            with iter(reader) as batches:
                next(batches)
                fleet.barrier_worker()
                worker.process.wait(ENDED_WITHIN_S)
                _wait_until_gone(servers, "worker-1")
                with pytest.raises(PeerLostError, match=r"worker-1 was lost while it read .*part-"):
                    list(batches)


@pytest.mark.job
def test_files_of_a_killed_worker_are_read_on_by_those_who_keep_going(
    servers: NativeServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARSEFLEET_KEEP_GOING", "1")
    for index in range(6):
        write_ids(tmp_path / f"part-{index}", range(index * 10, index * 10 + 10))
    with doomed("sharding", servers, str(tmp_path / "part-*")) as worker:
        with survivor(servers) as fleet:
            reader = reader_of(tmp_path, fleet)
            with iter(reader) as batches:
                found = next(batches)["id"].tolist()
                fleet.barrier_worker()
                worker.process.wait(ENDED_WITHIN_S)
                _wait_until_gone(servers, "worker-1")
                found += [key for batch in batches for key in batch["id"].tolist()]
            assert sorted(found + worker.taken) == list(range(60))
            assert sorted(read_ids(reader)) == list(range(60))  # the next epoch, alone


def _wait_until_gone(servers: NativeServers, client: str) -> None:
    gone = threading.Event()
    for _ in range(int(ENDED_WITHIN_S / 0.05)):
        if not servers.servers[0].has_client(client):
            return
        gone.wait(0.05)
    raise TimeoutError(f"{client} is still there")
