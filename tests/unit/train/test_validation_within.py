# ruff: noqa: ARG002
"""Validation within an epoch: `TrainerConfig(validate_every_steps=...)`."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.saved_training import DropoutClicks, click_batches
from tests.support.servers import JOB_KEY, NativeServers
from tests.unit.train.click_model import BCE, Clicks, clicks, trainer_of

from sparsefleet import optim
from sparsefleet.engine.events import EvaluatedWithin
from sparsefleet.errors import ConfigError
from sparsefleet.fleet import Fleet, RoleInfo
from sparsefleet.train import (
    Callback,
    CheckpointConfig,
    EarlyStopping,
    JsonLinesLogger,
    SaveBest,
    Trainer,
    TrainerConfig,
)

DEADLINE_S = 60.0


def every(steps: int) -> TrainerConfig:
    return TrainerConfig(quiet=True, validate_every_steps=steps)


class Calls(Callback):
    """Records validations and the ends of epochs."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, Any]] = []

    def on_evaluate_within(self, trainer: Trainer, evaluated: EvaluatedWithin) -> None:
        self.calls.append(("within", evaluated.epoch, evaluated.step))

    def on_evaluate(self, trainer: Trainer, epoch: int, figures: Any) -> None:
        self.calls.append(("after", epoch, sorted(figures)))


def test_validation_comes_every_so_many_steps_and_after_each_epoch() -> None:
    seen = Calls()
    with trainer_of(Clicks(), config=every(4), callbacks=[seen]) as trainer:
        history = trainer.fit(clicks(10), epochs=2, validation=clicks(2, seed=1))
    after = ["auc", "log_loss", "loss"]
    assert seen.calls == [
        ("within", 1, 4),
        ("within", 1, 8),
        ("after", 1, after),
        ("within", 2, 12),
        ("within", 2, 16),
        ("within", 2, 20),
        ("after", 2, after),
    ]
    assert [each.step for each in history.validations] == [4, 8, 12, 16, 20]
    assert history.validations[-1].figures is history.last.validation, "not evaluated twice"
    losses = [each.figures["loss"] for each in history.validations]
    assert losses[-1] < losses[0]


def test_training_is_what_it_is_without_validation() -> None:
    def run(config: TrainerConfig) -> tuple[list[float], dict[str, torch.Tensor]]:
        torch.manual_seed(3)
        model = DropoutClicks()

        def shuffled() -> Iterator[Any]:  # draws from the generators as a DataLoader does
            data = click_batches(3, seed=9)
            yield from (data[at] for at in torch.randperm(3))

        with trainer_of(model, config=config) as trainer:
            history = trainer.fit(click_batches(12), epochs=2, validation=shuffled)
        return [epoch.loss for epoch in history.epochs], dict(model.named_parameters())

    torch.manual_seed(3)
    losses, wanted = run(TrainerConfig(quiet=True))
    for steps in (1, 5):
        found = run(every(steps))
        assert found[0][0] == losses[0]
        if steps == 5:  # with 1, the last validation of an epoch is not repeated: fewer draws
            assert found[0] == losses
            for name, values in found[1].items():
                assert torch.equal(values, wanted[name]), name


def test_the_display_and_the_log_show_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.jsonl"
    config = TrainerConfig(validate_every_steps=3)
    with trainer_of(Clicks(), config=config, callbacks=[JsonLinesLogger(log)]) as trainer:
        trainer.fit(clicks(6), validation=clicks(1))
    assert "epoch 1/1  step 3  validation  loss 0." in capsys.readouterr().out
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    found = [(line["event"], line["step"]) for line in lines if line["event"] == "evaluate"]
    assert found == [("evaluate", 3), ("evaluate", 6)]


@pytest.mark.parametrize("threads", [1, 3])
def test_early_stopping_ends_within_an_epoch_and_is_over_for_a_resumed_script(
    threads: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = CheckpointConfig(directory=tmp_path)

    def run() -> tuple[int, bool, int]:
        stopping = EarlyStopping("loss", patience=2, min_delta=1e9)  # nothing is better than that
        with trainer_of(
            Clicks(),
            config=every(5),
            callbacks=[stopping],
            checkpoints=checkpoints,
            resume="auto",
            threads=threads,
        ) as trainer:
            history = trainer.fit(clicks(60), epochs=3, validation=clicks(1))
            return len(history.validations), history.was_stopped, history.examples

    with caplog.at_level(logging.INFO, logger="sparsefleet.train"):
        validations, was_stopped, examples = run()
    assert (validations, was_stopped) == (3, True)
    assert 15 * 32 <= examples < 60 * 32
    assert "in epoch 1: loss has not improved on" in caplog.text
    assert run() == (0, False, 0)


def test_a_stop_in_the_last_validation_of_all_is_told() -> None:
    class Stop(Callback):
        def on_evaluate_within(self, trainer: Trainer, evaluated: EvaluatedWithin) -> None:
            trainer.stop()

    with trainer_of(Clicks(), config=every(2), callbacks=[Stop()]) as trainer:
        history = trainer.fit(clicks(6), validation=clicks(1))
        assert history.was_stopped
        assert history.last.steps == 2
        assert len(trainer.fit(clicks(1), validation=clicks(1)).epochs) == 1, "and continues"


def test_the_best_model_within_an_epoch_is_saved(tmp_path: Path) -> None:
    best = SaveBest(tmp_path / "best", "loss", mode="max")  # the first validation, surely
    held_out = clicks(2, seed=5)
    with trainer_of(Clicks(), config=every(3), callbacks=[best]) as trainer:
        history = trainer.fit(clicks(12), validation=held_out)
        worst = max(history.validations, key=lambda each: each.figures["loss"])
    assert worst.step == 3
    assert best.best == worst.figures["loss"]
    with trainer_of(Clicks()) as trainer:
        trainer.load(tmp_path / "best")
        assert trainer.evaluate(held_out) == worst.figures


def test_a_model_saved_within_an_epoch_resumes_there(tmp_path: Path) -> None:
    torch.manual_seed(1)
    best = SaveBest(tmp_path / "best", "loss", mode="max")
    data, held_out = clicks(12), clicks(2, seed=5)
    with trainer_of(Clicks(), config=every(3), callbacks=[best]) as trainer:
        whole = trainer.fit(data, validation=held_out)
    with trainer_of(Clicks(), config=every(3), resume=tmp_path / "best") as trainer:
        rest = trainer.fit(data, validation=held_out)
    assert rest.last.steps == 9
    assert rest.last.validation == whole.last.validation


def test_validation_data_is_needed() -> None:
    with trainer_of(Clicks(), config=every(3)) as trainer:
        with pytest.raises(ConfigError, match=r"validate_every_steps is 3, but fit got no valid"):
            trainer.fit(clicks(2))
        with pytest.raises(ConfigError, match="can be read only once"):
            trainer.fit(clicks(2), validation=iter(clicks(1)))
    with pytest.raises(ConfigError, match="validate_every_steps must be"):
        every(0)


def test_an_error_in_validation_ends_training() -> None:
    def broken() -> Iterator[Any]:
        raise ValueError("no such file")
        yield

    for threads in (1, 2):
        with trainer_of(Clicks(), config=every(3), threads=threads) as trainer:
            with pytest.raises(ValueError, match="no such file"):
                trainer.fit(clicks(12), validation=broken)


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[NativeServers]:
    monkeypatch.setenv("SPARSEFLEET_JOB_KEY", JOB_KEY.decode())
    with NativeServers(2) as running:
        yield running


@pytest.mark.parametrize(
    ("mode", "threads"), [("sync", 1), ("half_async", 2), ("async", 2), ("geo", 1), ("hybrid", 1)]
)
def test_all_workers_validate_and_stop_together(
    servers: NativeServers, mode: str, threads: int, tmp_path: Path
) -> None:
    def run(index: int) -> tuple[list[EvaluatedWithin], bool, float]:
        fleet = Fleet()
        endpoints = tuple(servers.endpoints)
        fleet.init(RoleInfo(kind="worker", index=index, worker_num=2, server_endpoints=endpoints))
        best = SaveBest(tmp_path / "best", "loss")
        stopping = EarlyStopping("loss", patience=2, min_delta=0.0 if index == 0 else 1e9)
        with Trainer(
            Clicks(),
            BCE,
            optim.SGD(lr=0.1),
            mode=mode,
            threads=threads,
            config=every(4),
            fleet=fleet,
            callbacks=[best, stopping],
        ) as trainer:
            # One worker has far less data: it takes part in validations until all have finished.
            data = clicks(40 if index == 0 else 6, seed=index)
            history = trainer.fit(data, epochs=3, validation=clicks(2, seed=7 + index))
            return history.validations, history.was_stopped, best.best

    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(run, index) for index in range(2)]
        found = [future.result(DEADLINE_S) for future in running]
    assert found[0] == found[1]
    validations, was_stopped, _ = found[0]
    assert was_stopped, "worker 1 had enough"
    assert len(validations) == 3
    assert all(one.step < other.step for one, other in pairwise(validations))
