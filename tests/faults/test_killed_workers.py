"""Workers killed at any moment and started again: every record is trained exactly once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.faults.killed_worker import (
    BATCH_SIZE,
    BATCHES,
    EPOCHS,
    keep_ledger,
    keep_program_ledger,
    ledger_spec,
    train_model,
    write_files,
)
from tests.support.killable_workers import KillableWorkers
from tests.support.launch_process import wait_until
from tests.support.servers import NativeServers

from sparsefleet.checkpoint import latest

WORKERS = 2
IDS = np.arange(WORKERS * BATCHES * BATCH_SIZE)


def _servers() -> NativeServers:
    return NativeServers(2, peer_timeout_s=60.0)


@pytest.mark.job
@pytest.mark.parametrize(
    ("mode", "threads", "seed"),
    [("sync", 1, 1), ("half_async", 2, 2), ("async", 2, 3), ("hybrid", 1, 4), ("geo", 2, 5)],
)
def test_each_record_counts_once(mode: str, threads: int, seed: int) -> None:
    with _servers() as servers:
        workers = KillableWorkers(servers.endpoints, WORKERS, keep_ledger, mode, threads)
        workers.run(kills=5, seed=seed)
        assert sum(workers.restarts) > 0
        # Modes with rounds take the mean over workers, those with a barrier over threads.
        share = {"sync": WORKERS, "half_async": threads}.get(mode, 1)
        with servers.connect() as store:
            rows = store.pull("ledger", IDS, train=False)
            assert set((share * rows).ravel().tolist()) == {float(EPOCHS)}


@pytest.mark.job
@pytest.mark.parametrize(("mode", "seed"), [("sync", 21), ("async", 22)])
def test_saves_go_on_over_kills(mode: str, seed: int, tmp_path: Path) -> None:
    with _servers() as servers:
        workers = KillableWorkers(
            servers.endpoints, WORKERS, keep_ledger, mode, 1, "", str(tmp_path / "series")
        )
        workers.run(kills=5, seed=seed)
        assert sum(workers.restarts) > 0
        with servers.connect() as store:
            rows = store.pull("ledger", IDS, train=False)
    saved = latest(str(tmp_path / "series"))
    assert saved is not None
    with _servers() as servers, servers.connect() as store:
        store.define(ledger_spec())
        store.load(saved.path)
        assert np.array_equal(store.pull("ledger", IDS, train=False), rows)
    assert len(set(rows.ravel().tolist())) == 1


@pytest.mark.job
def test_files_read_in_any_order_count_once(tmp_path: Path) -> None:
    write_files(tmp_path)
    with _servers() as servers:
        workers = KillableWorkers(
            servers.endpoints, WORKERS, keep_ledger, "async", 2, str(tmp_path)
        )
        workers.run(kills=6, seed=31)
        assert sum(workers.restarts) > 0
        with servers.connect() as store:
            assert set(store.pull("ledger", IDS, train=False).ravel().tolist()) == {float(EPOCHS)}


@pytest.mark.job
@pytest.mark.parametrize(("mode", "threads", "seed"), [("sync", 1, 41), ("async", 2, 42)])
def test_each_record_of_a_program_counts_once(
    mode: str, threads: int, seed: int, tmp_path: Path
) -> None:
    write_files(tmp_path)
    with _servers() as servers:
        workers = KillableWorkers(
            servers.endpoints, WORKERS, keep_program_ledger, mode, threads, str(tmp_path)
        )
        workers.run(kills=5, seed=seed)
        assert sum(workers.restarts) > 0
        share = WORKERS if mode == "sync" else 1
        with servers.connect() as store:
            rows = store.pull("ledger", IDS, train=False)
            assert set((share * rows).ravel().tolist()) == {float(EPOCHS)}


@pytest.mark.job
def test_sync_over_kills_gives_the_same_bits(tmp_path: Path) -> None:
    found = []
    for kills in (0, 6):
        out = tmp_path / f"dense-{kills}"
        with _servers() as servers:
            workers = KillableWorkers(servers.endpoints, WORKERS, train_model, "sync", str(out))
            workers.run(kills=kills, seed=11)
            assert (sum(workers.restarts) > 0) == (kills > 0)
            with servers.connect() as store:
                found.append((store.pull("words", np.arange(60), train=False), out.read_bytes()))
    assert np.array_equal(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]


@pytest.mark.job
@pytest.mark.parametrize(("mode", "killed"), [("async", 0), ("geo", 1)])
def test_others_train_what_a_lost_worker_has_left(mode: str, killed: int, tmp_path: Path) -> None:
    write_files(tmp_path)
    with NativeServers(1, peer_timeout_s=2.0) as servers:
        workers = KillableWorkers(
            servers.endpoints, WORKERS, keep_ledger, mode, 1, str(tmp_path), restarts=False
        )
        with servers.connect() as store:
            store.define(ledger_spec())
            wait_until(lambda: store.info("ledger").size > 20, "some records are trained")
            workers.kill(killed)
            workers.run()
            rows = store.pull("ledger", IDS, train=False).ravel()
        assert set(rows.tolist()) == {float(EPOCHS)}


@pytest.mark.job
def test_records_that_nobody_else_can_read_are_reported() -> None:
    with NativeServers(1, peer_timeout_s=2.0) as servers:
        workers = KillableWorkers(
            servers.endpoints, WORKERS, keep_ledger, "async", 1, restarts=False
        )
        with servers.connect() as store:
            store.define(ledger_spec())
            wait_until(lambda: store.info("ledger").size > 20, "some records are trained")
            workers.kill(1)
            with pytest.raises(RuntimeError, match="worker 0 ended with exit code 1"):
                workers.run()
