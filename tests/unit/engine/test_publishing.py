"""Updates that a training publishes in every mode, and their effect on a service."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.saved_training import DropoutClicks, click_batches, make_trainer
from tests.support.servers import NativeServers
from torch import nn

from sparsefleet import Predictor, optim
from sparsefleet.errors import ConfigError, PublishError
from sparsefleet.fleet import Fleet
from sparsefleet.modes import AsyncConfig, GeoConfig
from sparsefleet.serving.export import read_manifest
from sparsefleet.serving.row_stores import open_rows
from sparsefleet.serving.updates import UpdateReader, open_log
from sparsefleet.train import CheckpointConfig, PublishConfig, Trainer

pytestmark = pytest.mark.usefixtures("job_key")

DEADLINE_S = 90.0


def run_workers(num_workers: int, work: Callable[[Trainer, int], Any], **options: Any) -> list[Any]:
    def run(endpoints: list[str], index: int) -> Any:
        with make_trainer(endpoints, index, num_workers, model=DropoutClicks(), **options) as made:
            return work(made, index)

    with NativeServers(2) as servers, ThreadPoolExecutor(num_workers) as pool:
        running = [pool.submit(run, servers.endpoints, index) for index in range(num_workers)]
        return [future.result(DEADLINE_S) for future in running]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write an export of a model that was trained on other data."""
    directory = tmp_path_factory.mktemp("export")
    torch.manual_seed(3)
    with make_trainer([], 0, 1, model=DropoutClicks(), optimizer=optim.SGD(lr=0.1)) as trainer:
        trainer.fit(click_batches(3, seed=9))
        trainer.export(directory, click_batches(1)[0])
    return directory


def served(model: Path, updates: Path | str, batch: Any, **options: Any) -> np.ndarray:
    """Return the predictions of a service that starts now."""
    rows = open_rows(model, read_manifest(model), updates=updates)
    try:
        return Predictor(model, rows=rows, **options).predict({"ids": batch[0].numpy()})
    finally:
        rows.close()


@pytest.mark.parametrize(
    "mode",
    ["sync", "half_async", "async", "hybrid", AsyncConfig(max_staleness=2), GeoConfig()],
    ids=["sync", "half_async", "async", "hybrid", "bounded", "geo"],
)
def test_every_mode_publishes_what_its_trainer_predicts(
    mode: Any, model: Path, tmp_path: Path
) -> None:
    publish = PublishConfig(model=model, target=tmp_path / "updates", every_steps=3)

    def work(trainer: Trainer, index: int) -> Any:
        trainer.fit(click_batches((7, 12)[index], seed=index))
        trainer.distributed.settle()
        return trainer.predict(click_batches(1, seed=5)).numpy()

    first, _ = run_workers(2, work, mode=mode, optimizer=optim.SGD(lr=0.05), publish=publish)
    found = served(model, tmp_path / "updates", click_batches(1, seed=5)[0])
    np.testing.assert_allclose(found, first, atol=1e-6)
    names = open_log(tmp_path / "updates", read_manifest(model).digest).names()
    assert sorted(name.kind for name in names)[-1] == "whole"
    assert len(names) >= 2


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_updates_by_the_clock_come_while_workers_train(
    mode: str, model: Path, tmp_path: Path
) -> None:
    publish = PublishConfig(model=model, target=tmp_path, every_s=0.02)
    log = open_log(tmp_path, read_manifest(model).digest)

    def work(trainer: Trainer, index: int) -> int:
        def batches() -> Any:
            end = time.monotonic() + DEADLINE_S
            for batch in itertools.cycle(click_batches(5, seed=index)):
                if trained.is_set() or time.monotonic() > end:
                    return
                yield batch
                if max((name.sequence for name in log.names()), default=0) >= 4 and mode != "sync":
                    trained.set()

        data = click_batches(100, seed=index) if mode == "sync" else batches
        trainer.fit(data)
        return len(log.names())

    trained = threading.Event()
    run_workers(2, work, mode=mode, optimizer=optim.SGD(lr=0.05), publish=publish)
    assert max(name.sequence for name in log.names()) >= (2 if mode == "sync" else 4)


@pytest.mark.parametrize("engine", ["torch", "onnx"])
def test_a_running_service_predicts_what_the_trainer_does_after_each_update(
    engine: Any, model: Path, tmp_path: Path
) -> None:
    publish = PublishConfig(model=model, target=tmp_path, every_steps=2)
    batch = click_batches(1, seed=5)
    rows = open_rows(model, read_manifest(model), updates=tmp_path)
    predictor = Predictor(model, engine=engine, rows=rows)
    assert rows.freshness() is None
    predictor.check_golden()
    try:
        with make_trainer(optimizer=optim.SGD(lr=0.1), publish=publish) as trainer:
            for number in range(3):
                trainer.fit(click_batches(5, seed=number))
                wanted = trainer.predict(batch).numpy()
                newest = max(name.sequence for name in open_log(tmp_path, rows.version).names())
                wait_for(lambda newest=newest: rows.sequence == newest)
                found = predictor.predict({"ids": batch[0][0].numpy()})
                np.testing.assert_allclose(found, wanted, atol=1e-5)
        assert time.time() - rows.freshness() < DEADLINE_S
        assert rows.problem is None
    finally:
        rows.close()


def test_checkpoints_of_only_what_changed_and_updates_do_not_take_from_each_other(
    model: Path, tmp_path: Path
) -> None:
    publish = PublishConfig(model=model, target=tmp_path / "updates", every_steps=2)
    checkpoints = CheckpointConfig(
        directory=tmp_path / "saves", every_steps=3, deltas_between_fulls=100, keep=100
    )
    batch = click_batches(1, seed=5)
    options: dict[str, Any] = {"optimizer": optim.SGD(lr=0.1)}
    with make_trainer(publish=publish, checkpoints=checkpoints, **options) as trainer:
        trainer.fit(click_batches(20))
        wanted = trainer.predict(batch).numpy()
    np.testing.assert_allclose(served(model, tmp_path / "updates", batch[0]), wanted, atol=1e-6)
    with make_trainer(checkpoints=checkpoints, resume="auto", **options) as resumed:
        np.testing.assert_array_equal(resumed.predict(batch).numpy(), wanted)


def test_rows_that_were_removed_are_unknown_to_the_service_too(model: Path, tmp_path: Path) -> None:
    publish = PublishConfig(model=model, target=tmp_path, every_steps=2)
    manifest = read_manifest(model)
    with make_trainer(optimizer=optim.SGD(lr=0.1), publish=publish) as trainer:
        trainer.fit(click_batches(5))
        trainer.distributed.store.erase("ads", np.arange(10))
        trainer.fit([(batch[0] + 100, batch[1]) for batch in click_batches(5)])
        there = {int(key) for rows in trainer.distributed.store.rows("ads") for key in rows.keys}
    rows = open_rows(model, manifest, updates=tmp_path)
    try:
        keys = np.arange(300, dtype=np.uint64)
        known = rows.tables()["ads"].known(keys)
        assert set(keys[known].tolist()) == there
        assert not known[:10].any()
    finally:
        rows.close()


def test_a_trainer_that_is_restarted_continues_the_log(model: Path, tmp_path: Path) -> None:
    publish = PublishConfig(model=model, target=tmp_path, every_steps=2)
    batch = click_batches(1, seed=5)
    for seed in (1, 2):
        with make_trainer(optimizer=optim.SGD(lr=0.1), publish=publish) as trainer:
            trainer.fit(click_batches(4, seed=seed))
            wanted = trainer.predict(batch).numpy()
        np.testing.assert_allclose(served(model, tmp_path, batch[0]), wanted, atol=1e-6)


def test_a_second_trainer_is_refused_while_the_first_publishes(model: Path, tmp_path: Path) -> None:
    publish = PublishConfig(model=model, target=tmp_path, every_steps=2)
    with make_trainer(optimizer=optim.SGD(lr=0.1), publish=publish) as first:
        first.fit(click_batches(2))
        with make_trainer(optimizer=optim.SGD(lr=0.1), publish=publish) as second:
            with pytest.raises(PublishError, match="another trainer is publishing to"):
                second.fit(click_batches(2))


def test_a_worker_that_closes_while_the_first_publishes_touches_nothing(
    model: Path, tmp_path: Path
) -> None:
    publish = PublishConfig(model=model, target=tmp_path, every_steps=2)
    closed = threading.Event()

    def work(trainer: Trainer, index: int) -> bool:
        trainer.fit(click_batches(4, seed=index))
        if index == 1:
            try:
                trainer.close()  # must not open a publisher only to close it
            finally:
                closed.set()
        return closed.wait(DEADLINE_S)  # the first one still holds the right to publish

    options = {"mode": "async", "optimizer": optim.SGD(lr=0.05), "publish": publish}
    assert run_workers(2, work, **options) == [True, True]


def test_the_export_of_another_model_is_refused(model: Path, tmp_path: Path) -> None:
    class Other(DropoutClicks):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 2)

    publish = PublishConfig(model=model, target=tmp_path)
    with make_trainer(model=Other(), optimizer=optim.SGD(lr=0.1), publish=publish) as trainer:
        with pytest.raises(ConfigError, match="export of a different model: its 'head"):
            trainer.fit(click_batches(2))


def test_updates_that_cannot_be_written_go_with_the_next_and_the_last_failure_is_reported(
    model: Path, tmp_path: Path
) -> None:
    publish = PublishConfig(model=model, target=tmp_path, every_steps=2)
    batch = click_batches(1, seed=5)
    folder = tmp_path / read_manifest(model).digest
    with make_trainer(optimizer=optim.SGD(lr=0.1), publish=publish) as trainer:
        trainer.fit(click_batches(3))
        folder.rename(tmp_path / "away")
        trainer.fit(click_batches(3, seed=1))
        (tmp_path / "away").rename(folder)
        trainer.fit(click_batches(3, seed=2))
        wanted = trainer.predict(batch).numpy()
    np.testing.assert_allclose(served(model, tmp_path, batch[0]), wanted, atol=1e-6)
    trainer = make_trainer(optimizer=optim.SGD(lr=0.1), publish=publish)
    trainer.fit(click_batches(3))
    folder.rename(tmp_path / "gone")
    trainer.fit(click_batches(3, seed=1))
    with pytest.raises(PublishError, match="last update could not be published"):
        trainer.close()


def test_a_loop_by_hand_publishes_through_the_fleet(model: Path, tmp_path: Path) -> None:
    fleet, clicks = Fleet(), DropoutClicks()
    fleet.init()
    fleet.distribute(clicks, optim.SGD(lr=0.1))
    fleet.init_worker()
    batch = click_batches(1, seed=5)[0]
    for number, (ids, labels) in enumerate(click_batches(3)):
        with fleet.step(ids):
            nn.functional.binary_cross_entropy_with_logits(clicks(ids), labels).backward()
        update = fleet.publish_rows(model, tmp_path)
        assert (update.sequence, update.previous is None) == (number + 1, number == 0)
        assert number == 0 or update.num_rows == len(ids.unique())
    clicks.eval()
    wanted = clicks(batch[0]).sigmoid().detach().numpy()
    fleet.stop_worker()
    np.testing.assert_allclose(served(model, tmp_path, batch), wanted, atol=1e-6)


def test_a_whole_update_comes_after_so_many_and_older_ones_go(model: Path, tmp_path: Path) -> None:
    config = PublishConfig(model=model, target=tmp_path, every_steps=1, deltas_between_wholes=2)
    batch = click_batches(1, seed=5)
    manifest = read_manifest(model)
    with make_trainer(optimizer=optim.SGD(lr=0.1), publish=config) as trainer:
        for seed in range(8):
            trainer.fit(click_batches(1, seed=seed))
        wanted = trainer.predict(batch).numpy()
    log = open_log(tmp_path, manifest.digest)
    names = log.names()
    wholes = sorted(name.sequence for name in names if name.kind == "whole")
    assert len(wholes) == 2
    assert min(name.sequence for name in names) == wholes[0]
    np.testing.assert_allclose(served(model, tmp_path, batch[0]), wanted, atol=1e-6)
    deltas_only = UpdateReader(log, manifest.digest, manifest.tables)
    deltas_only.catch_up()
    assert deltas_only.snapshot is not None
    assert deltas_only.problem is None


def wait_for(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline, "it has not happened"
        time.sleep(0.01)
