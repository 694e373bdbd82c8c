"""Saves during training, in every mode, and how a trainer uses them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.saved_training import (
    BreakingData,
    DropoutClicks,
    StoppedError,
    click_batches,
    contents,
    make_trainer,
)
from tests.support.servers import NativeServers
from torch import nn

from sparsefleet import optim
from sparsefleet.checkpoint import Checkpoint, list_checkpoints
from sparsefleet.errors import (
    CheckpointError,
    CheckpointMismatchError,
    CheckpointMissingError,
    ConfigError,
)
from sparsefleet.modes import AsyncConfig, GeoConfig
from sparsefleet.nn import SparseEmbeddingBag
from sparsefleet.server import table_save
from sparsefleet.store import Evict
from sparsefleet.train import CheckpointConfig, Trainer, TrainerConfig

pytestmark = pytest.mark.usefixtures("job_key")

DEADLINE_S = 90.0


def series_of(directory: Path, **options: Any) -> CheckpointConfig:
    settings = {"every_steps": 3, "keep": 100, "skip_while_writing": False, **options}
    return CheckpointConfig(directory=directory, **settings)


def run_workers(
    num_workers: int,
    work: Callable[[Trainer, int], Any],
    num_servers: int = 2,
    model: type[nn.Module] = DropoutClicks,
    **options: Any,
) -> list[Any]:
    def run(endpoints: list[str], index: int) -> Any:
        with make_trainer(endpoints, index, num_workers, model=model(), **options) as trainer:
            return work(trainer, index)

    with NativeServers(num_servers) as servers, ThreadPoolExecutor(num_workers) as pool:
        running = [pool.submit(run, servers.endpoints, index) for index in range(num_workers)]
        return [future.result(DEADLINE_S) for future in running]


@pytest.mark.parametrize(
    "mode",
    ["sync", "half_async", "async", "hybrid", AsyncConfig(max_staleness=2), GeoConfig()],
    ids=["sync", "half_async", "async", "hybrid", "bounded", "geo"],
)
def test_every_mode_saves_one_moment_of_workers_with_uneven_data(mode: Any, tmp_path: Path) -> None:
    sgd = optim.SGD(lr=0.01)

    def work(trainer: Trainer, index: int) -> int:
        history = trainer.fit(click_batches((7, 19)[index], seed=index), epochs=2)
        return sum(epoch.steps for epoch in history.epochs)

    steps = run_workers(
        2, work, mode=mode, threads=2, optimizer=sgd, checkpoints=series_of(tmp_path)
    )
    assert steps == [14, 38]
    listed = list_checkpoints(str(tmp_path))
    assert len(listed) >= 6
    assert listed[-1].step == 52
    for each in listed:
        found = Checkpoint.open(each.path)
        found.verify()
        reports = found.workers()
        assert sum(report["batches"] for report in reports) == each.step
        assert len({report["epoch"] for report in reports}) == 1


def test_checkpoints_of_async_hold_all_that_was_handed_over(tmp_path: Path) -> None:
    """One table row counts the pushes: every step of every worker is in it, and none twice."""

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows = SparseEmbeddingBag("ads", 1, mode="sum", eviction=Evict(min_count=1))

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.rows(ids).squeeze(1)

    def work(trainer: Trainer, index: int) -> None:
        ids = torch.zeros(4, 1, dtype=torch.int64)
        trainer.fit([(ids, torch.ones(4))] * (10 + 5 * index))

    config = AsyncConfig(max_merge=1)
    run_workers(
        2,
        work,
        mode=config,
        model=Counting,
        optimizer=optim.SGD(lr=0.1),
        checkpoints=series_of(tmp_path, every_steps=4),
    )
    for each in list_checkpoints(str(tmp_path)):
        found = contents(each.path)
        assert found["ads:counters"].tolist() == [[each.step]]


def test_deltas_and_their_base_are_the_full_save(tmp_path: Path) -> None:
    config = series_of(tmp_path / "series", deltas_between_fulls=2)
    with NativeServers(2) as servers:
        with make_trainer(servers.endpoints, mode="sync", checkpoints=config) as trainer:
            trainer.fit(click_batches(14))
            trainer.save(tmp_path / "full")
    listed = list_checkpoints(str(tmp_path / "series"))
    kinds = [each.manifest.kind for each in listed if each.manifest is not None]
    assert kinds == ["full", "delta", "delta", "full", "delta"]
    newest, full = contents(listed[-1].path), contents(tmp_path / "full")
    assert newest.keys() == full.keys()
    for name, array in newest.items():
        np.testing.assert_array_equal(array, full[name], err_msg=name)


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    with make_trainer(mode="local", checkpoints=series_of(tmp_path, keep=2)) as trainer:
        trainer.fit(click_batches(14))
    assert [each.step for each in list_checkpoints(str(tmp_path))] == [12, 14]


def test_failed_saves_are_reported_and_training_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise OSError("the disk is on fire")

    monkeypatch.setattr(table_save.TableSave, "_write_table", fail)
    trainer = make_trainer(mode="local", checkpoints=series_of(tmp_path))
    assert trainer.fit(click_batches(8)).last.steps == 8
    assert caplog.text.count("the disk is on fire") >= 3
    assert "training continues" in caplog.text
    with pytest.raises(CheckpointError, match="the disk is on fire"):
        trainer.close()
    assert list_checkpoints(str(tmp_path)) == []


def test_a_later_save_makes_up_for_one_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, failed = table_save.TableSave._write_table, threading.Event()

    def fail_once(*arguments: Any) -> Any:
        if not failed.is_set():
            failed.set()
            raise OSError("just once")
        return write(*arguments)

    monkeypatch.setattr(table_save.TableSave, "_write_table", fail_once)
    config = series_of(tmp_path, deltas_between_fulls=5)
    with make_trainer(mode="local", checkpoints=config) as trainer:
        trainer.fit(click_batches(8))
    assert [(each.step, each.manifest.kind) for each in list_checkpoints(str(tmp_path))] == [
        (6, "full"),
        (8, "delta"),
    ]


def test_resume_without_a_checkpoint_begins_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sparsefleet")
    with make_trainer(mode="local", checkpoints=series_of(tmp_path), resume="auto") as trainer:
        assert trainer.fit(click_batches(2)).last.steps == 2
    assert "training starts from scratch" in caplog.text


def test_series_in_place_of_a_checkpoint_is_reported_as_such(tmp_path: Path) -> None:
    with make_trainer(mode="local", checkpoints=series_of(tmp_path)) as trainer:
        trainer.fit(click_batches(3))
        with pytest.raises(
            CheckpointMissingError, match="series of checkpoints .1.; choose one, such as step-0000"
        ):
            trainer.load(tmp_path)


def test_what_is_resumed_is_reported_unless_quiet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for config, told in ((TrainerConfig(quiet=True), False), (TrainerConfig(), True)):
        for _ in range(2):
            with make_trainer(
                mode="local", checkpoints=series_of(tmp_path), resume="auto", config=config
            ) as trainer:
                trainer.fit(click_batches(3))
        assert ("resumed from" in capsys.readouterr().out) is told


def test_fits_that_were_over_are_passed_over(tmp_path: Path) -> None:
    config = series_of(tmp_path)

    def script(stop_at: int | None) -> list[int]:
        trainer = make_trainer(mode="local", checkpoints=config, resume="auto")
        with trainer:
            first = trainer.fit(BreakingData(click_batches(5)), epochs=2)
            second = trainer.fit(BreakingData(click_batches(6), stop_at), epochs=2)
            return [sum(epoch.steps for epoch in each.epochs) for each in (first, second)]

    with pytest.raises(StoppedError):
        script(8)
    assert script(None) == [0, 12 - 6], "saved at the end of the first of two epochs"
    assert script(None) == [0, 0]


@pytest.mark.parametrize("workers", [1, 3])
def test_training_resumes_with_another_number_of_workers(workers: int, tmp_path: Path) -> None:
    def first(trainer: Trainer, index: int) -> None:
        trainer.fit(BreakingData(click_batches(9, seed=index)), epochs=1)

    def second(trainer: Trainer, index: int) -> int:
        history = trainer.fit(click_batches(4, seed=index), epochs=2)
        assert history.epochs[0].number == 2
        return trainer.distributed.store.info("ads").size

    config = series_of(tmp_path)
    run_workers(2, first, mode="sync", checkpoints=config)
    sizes = run_workers(workers, second, workers, mode="sync", checkpoints=config, resume="auto")
    assert min(sizes) > 50
    assert list_checkpoints(str(tmp_path))[-1].step == 18 + 4 * workers


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_saves_fall_due_over_epochs_where_their_ends_are_not_saved(
    mode: str, tmp_path: Path
) -> None:
    config = series_of(tmp_path, every_steps=10, each_epoch=False)

    def work(trainer: Trainer, index: int) -> None:
        trainer.fit(click_batches((4, 3)[index], seed=index), epochs=6)

    run_workers(2, work, mode=mode, checkpoints=config)
    steps = [each.step for each in list_checkpoints(str(tmp_path))]
    assert steps[-1] == 42
    assert len(steps) >= 3
    if mode == "sync":
        assert steps == [18, 35, 42], "after 10 and 20 rounds of 24"


def test_damaged_checkpoint_is_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = series_of(tmp_path)

    def first(trainer: Trainer, index: int) -> None:
        trainer.fit(click_batches(8, seed=index))

    def second(trainer: Trainer, index: int) -> int:
        return trainer.fit(click_batches(8, seed=index)).last.steps

    run_workers(2, first, mode="sync", checkpoints=config)
    newest = max(tmp_path.glob("step-*"))
    for file in newest.glob("tables/*/*.parquet"):
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    steps = run_workers(2, second, mode="sync", checkpoints=config, resume="auto")
    assert steps == [2, 2], "from the one before, after 6 steps each"
    assert "skipping a damaged checkpoint" in caplog.text


def test_another_model_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    with make_trainer(mode="local") as trainer:
        trainer.fit(click_batches(3))
        trainer.save(tmp_path)

    class Wider(DropoutClicks):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 1, bias=False)

    with make_trainer(mode="local", model=Wider()) as trainer:
        trainer.fit(click_batches(3))
        before = trainer.predict(click_batches(2))
        with pytest.raises(CheckpointMismatchError, match=r"it has 'head\.bias'"):
            trainer.load(tmp_path)
        assert torch.equal(trainer.predict(click_batches(2)), before)


def test_invalid_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="resume='auto'"):
        make_trainer(mode="local", resume="auto")
    with pytest.raises(ConfigError, match=r"must be a CheckpointConfig.* got 'checkpoints'"):
        make_trainer(mode="local", checkpoints="checkpoints")
    with pytest.raises(ConfigError, match="resume must be"):
        make_trainer(mode="local", resume=3)
    with pytest.raises(ConfigError, match="keep"):
        CheckpointConfig(directory=tmp_path, keep=0)
