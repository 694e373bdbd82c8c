"""Workers killed at any moment and started again: every record is trained exactly once."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.faults.killed_worker import (
    BATCH_SIZE,
    BATCHES,
    EPOCHS,
    EachLedger,
    export_while_the_first_worker_dies,
    keep_gated_ledger,
    keep_ledger,
    keep_ledger_and_die_at_the_end,
    keep_ledger_and_die_within,
    keep_ledger_until_an_error,
    keep_program_ledger,
    keep_shared_ledger,
    keep_shuffled_program_ledger,
    ledger_spec,
    train_model,
    write_files,
)
from tests.support.killable_workers import KillableWorkers
from tests.support.launch_process import wait_until
from tests.support.servers import NativeServers

from sparsefleet.checkpoint import latest
from sparsefleet.errors import UnknownTableError
from sparsefleet.launch.chaos.injector import FaultyProxies
from sparsefleet.nn import bind
from sparsefleet.optim import SGD
from sparsefleet.serving import Predictor
from sparsefleet.serving.export import save_inference_model
from sparsefleet.store import LocalStore, RemoteStore

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
@pytest.mark.parametrize(
    ("mode", "threads", "how"),
    [
        ("sync", 1, "raise"),
        ("sync", 1, "between"),
        ("half_async", 2, "open"),
        ("async", 2, "exit"),
        ("hybrid", 1, "raise"),
        ("geo", 2, "raise"),
    ],
)
def test_records_of_a_worker_that_fails_and_is_restarted_count_once(
    mode: str, threads: int, how: str
) -> None:
    with _servers() as servers:
        workers = KillableWorkers(
            servers.endpoints,
            WORKERS,
            keep_ledger_until_an_error,
            mode,
            threads,
            how,
            restarts_failed=True,
        )
        workers.run()
        assert min(workers.restarts) >= 2
        share = {"sync": WORKERS, "half_async": threads}.get(mode, 1)
        with servers.connect() as store:
            rows = store.pull("ledger", IDS, train=False)
            assert set((share * rows).ravel().tolist()) == {float(EPOCHS)}


@pytest.mark.job
@pytest.mark.parametrize(
    ("mode", "moment"), [("async", "left"), ("sync", "left"), ("geo", "leaving")]
)
def test_a_worker_killed_at_its_end_does_not_wait_for_those_that_have_ended(
    mode: str, moment: str, tmp_path: Path
) -> None:
    with _servers() as servers:
        workers = KillableWorkers(
            servers.endpoints, WORKERS, keep_ledger_and_die_at_the_end, mode, moment, str(tmp_path)
        )
        workers.run()
        assert workers.restarts == [0, 1]
        share = WORKERS if mode == "sync" else 1
        with servers.connect() as store:
            rows = store.pull("ledger", IDS, train=False)
            assert set((share * rows).ravel().tolist()) == {float(EPOCHS)}


@pytest.mark.job
@pytest.mark.parametrize(
    ("mode", "moment", "doomed"),
    [
        ("async", "validating", 0),
        ("sync", "validating", 1),
        ("geo", "evaluating", 1),
        ("sync", "evaluating", 0),
        ("async", "saving", 0),
        ("sync", "saved", 0),
        ("async", "between", 1),
        ("async", "exporting", 0),
        ("sync", "exported", 0),
        ("async", "publishing", 0),
        ("sync", "published", 0),
    ],
)
def test_a_worker_killed_while_it_does_something_else_than_training_is_replaced(
    mode: str, moment: str, doomed: int, tmp_path: Path
) -> None:
    model = EachLedger()
    bind(model, LocalStore(), SGD(lr=1.0))
    example = torch.arange(3)
    save_inference_model(tmp_path / "first", model, example, targets="output", onnx=False)
    with _servers() as servers:
        workers = KillableWorkers(
            servers.endpoints,
            WORKERS,
            keep_ledger_and_die_within,
            *(mode, moment, doomed, str(tmp_path)),
        )
        workers.run()
        assert workers.restarts == [int(doomed == rank) for rank in range(WORKERS)]
        share = WORKERS if mode == "sync" else 1
        with servers.connect() as store:
            rows = store.pull("ledger", IDS, train=False)
            assert set((share * rows).ravel().tolist()) == {float(EPOCHS)}
    found = [json.loads((tmp_path / f"figures-{rank}.json").read_text()) for rank in range(WORKERS)]
    assert found[0][1] == found[1][1]  # all workers have the same metrics
    assert found[1 - doomed][0][-1] == found[doomed][0][-1]
    for path in (latest(str(tmp_path / "series")).path, tmp_path / "saved"):
        with _servers() as servers, servers.connect() as store:
            store.define(ledger_spec())
            store.load(path)
            assert len(set(store.pull("ledger", IDS, train=False).ravel().tolist())) == 1
    assert len(Predictor(tmp_path / "exported").predict({"ids": np.arange(3)})) == 3


@pytest.mark.job
@pytest.mark.parametrize(("mode", "moment"), [("async", "before"), ("geo", "within")])
def test_others_export_what_the_lost_first_worker_has_not(
    mode: str, moment: str, tmp_path: Path
) -> None:
    with NativeServers(1, peer_timeout_s=2.0) as servers:
        workers = KillableWorkers(
            servers.endpoints,
            WORKERS,
            export_while_the_first_worker_dies,
            *(mode, moment, str(tmp_path)),
            restarts=False,
        )
        workers.run()
    assert (tmp_path / "died").exists()
    assert len(Predictor(tmp_path / "exported").predict({"ids": np.arange(3)})) == 3


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
@pytest.mark.parametrize(("mode", "threads", "seed"), [("async", 2, 51), ("geo", 1, 52)])
def test_records_of_files_dealt_by_servers_count_once(
    mode: str, threads: int, seed: int, tmp_path: Path
) -> None:
    write_files(tmp_path, num_files=20)
    with _servers() as servers:
        workers = KillableWorkers(
            servers.endpoints, WORKERS, keep_shared_ledger, mode, threads, str(tmp_path)
        )
        workers.run(kills=6, seed=seed)
        assert sum(workers.restarts) > 0
        with servers.connect() as store:
            assert set(store.pull("ledger", IDS, train=False).ravel().tolist()) == {float(EPOCHS)}


@pytest.mark.job
@pytest.mark.parametrize(("mode", "killed"), [("async", 1), ("geo", 0)])
def test_others_train_dealt_files_that_a_lost_worker_has_left(
    mode: str, killed: int, tmp_path: Path
) -> None:
    write_files(tmp_path, num_files=20)
    _check_that_others_train_the_rest(keep_shared_ledger, mode, killed, 40, tmp_path)


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
def test_a_worker_restarted_after_a_global_shuffle_is_refused(tmp_path: Path) -> None:
    write_files(tmp_path)
    with _servers() as servers, servers.connect() as store:
        workers = KillableWorkers(
            servers.endpoints, WORKERS, keep_shuffled_program_ledger, str(tmp_path)
        )
        wait_until(lambda: _size(store) > 40, "some records are trained")
        workers.kill(1)
        with pytest.raises(RuntimeError, match="worker 1 exited with code 1"):
            workers.run()
    error = (tmp_path / "error-of-worker-1.txt").read_text()
    assert "had exchanged records with all workers" in error


def _check_that_others_train_the_rest(
    train: Callable[..., None], mode: str, killed: int, after: int, files: Path
) -> None:
    """Kill a worker for good once `after` records are trained; each must count once regardless."""
    with NativeServers(1, peer_timeout_s=2.0) as servers, servers.connect() as store:
        workers = KillableWorkers(
            servers.endpoints, WORKERS, train, mode, 1, str(files), restarts=False
        )
        wait_until(lambda: _size(store) > after, "some records are trained")
        workers.kill(killed)
        workers.run()
        rows = store.pull("ledger", IDS, train=False).ravel()
    assert set(rows.tolist()) == {float(EPOCHS)}


def _size(store: RemoteStore) -> int:
    try:
        return store.info("ledger").size
    except UnknownTableError:
        return 0


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
def test_dropout_after_a_kill_draws_what_it_would_have_drawn(tmp_path: Path) -> None:
    found = []
    for dies_at in (-1, BATCHES // 2):
        out = tmp_path / f"dense-{dies_at}"
        with _servers() as servers:
            workers = KillableWorkers(
                servers.endpoints, WORKERS, train_model, "sync", str(out), dies_at
            )
            workers.run()
            assert workers.restarts == [0, int(dies_at > 0)]
        found.append(out.read_bytes())
    assert found[0] == found[1]


@pytest.mark.job
@pytest.mark.parametrize(("mode", "killed"), [("async", 0), ("geo", 1)])
def test_others_train_what_a_lost_worker_has_left(mode: str, killed: int, tmp_path: Path) -> None:
    write_files(tmp_path)
    _check_that_others_train_the_rest(keep_ledger, mode, killed, 20, tmp_path)


@pytest.mark.job
@pytest.mark.parametrize(("mode", "killed"), [("async", 1), ("geo", 0)])
def test_others_train_what_a_lost_worker_of_a_program_has_left(
    mode: str, killed: int, tmp_path: Path
) -> None:
    write_files(tmp_path)
    _check_that_others_train_the_rest(keep_program_ledger, mode, killed, 40, tmp_path)


@pytest.mark.job
@pytest.mark.parametrize(
    ("mode", "threads"),
    [("sync", 1), ("half_async", 2), ("async", 2), ("hybrid", 1), ("geo", 1)],
)
def test_a_last_push_that_only_one_server_got_is_completed_on_the_other(
    mode: str, threads: int, tmp_path: Path
) -> None:
    write_files(tmp_path)
    gate = tmp_path / "gate"
    if mode in ("sync", "hybrid"):  # worker 0 waits for worker 1 anyway
        gate.touch()
    with (
        NativeServers(2, peer_timeout_s=2.0) as servers,
        FaultyProxies([servers.endpoints[1]]) as proxies,
        servers.connect() as store,
    ):
        through = f"{servers.endpoints[0]},{proxies.endpoints[0]}"
        workers = KillableWorkers(
            servers.endpoints,
            WORKERS,
            keep_gated_ledger,
            mode,
            threads,
            str(tmp_path),
            str(gate),
            restarts=False,
            variables_of={1: {"SPARSEFLEET_SERVERS": through, "SPARSEFLEET_TRANSPORT": "tls"}},
        )

        def pushes() -> list[float]:
            return [stats["table.ledger.version"] for stats in store.stats()]

        store.define(ledger_spec())
        wait_until(lambda: store.info("ledger").size > 60, "some records are trained")

        def is_stuck_in_a_push() -> bool:
            proxies.partition(0, True)
            found = [pushes()]
            for _ in range(10):
                time.sleep(0.05)
                found.append(pushes())
                if found[-1] == found[-2] and found[-1][0] > found[-1][1]:
                    return True
            proxies.partition(0, False)  # it waits for something else, such as an answer
            return False

        wait_until(is_stuck_in_a_push, "a push has reached the first server only")
        workers.kill(1)
        theirs = [key for key in IDS.tolist() if key % 8 >= 4]  # of the last four files
        before = store.pull("ledger", theirs, train=False).ravel()
        gate.touch()
        workers.run()
        rows = store.pull("ledger", IDS, train=False).ravel()
        after = store.pull("ledger", theirs, train=False).ravel()
    if mode == "sync":  # the mean over two workers, then all by one
        assert set(after[before > 0].tolist()) == {0.5 + (EPOCHS - 1)}
        assert set(rows.tolist()) == {0.5 + (EPOCHS - 1), float(EPOCHS)}
    elif mode == "half_async":  # the mean over threads
        assert set(after[before > 0].tolist()) == {EPOCHS / threads}
    else:
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
            with pytest.raises(RuntimeError, match="worker 0 exited with code 1"):
                workers.run()
