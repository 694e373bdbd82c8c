# ruff: noqa: ARG002
"""Callbacks of a Trainer, by themselves and in a fleet."""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.servers import JOB_KEY, NativeServers
from tests.unit.train.click_model import BCE, QUIET, Clicks, clicks, trainer_of

from sparsefleet import optim
from sparsefleet.engine.events import Events, StepDone, WorkerLost
from sparsefleet.errors import ConfigError, PeerLostError
from sparsefleet.fleet import Fleet, RoleInfo
from sparsefleet.train import (
    Callback,
    CheckpointConfig,
    EarlyStopping,
    Epoch,
    LearningRateLogger,
    SaveBest,
    Trainer,
)
from sparsefleet.train.callbacks import CallbackRunner

PAGE = Path(__file__).parents[3] / "docs" / "callbacks.md"
DEADLINE_S = 60.0


class Recorder(Callback):
    """Records every call as (hook, first argument)."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def on_fit_begin(self, trainer: Trainer, epochs: int) -> None:
        self.calls.append(("fit_begin", epochs))

    def on_epoch_begin(self, trainer: Trainer, epoch: int) -> None:
        self.calls.append(("epoch_begin", epoch))

    def on_step_end(self, trainer: Trainer, step: StepDone) -> None:
        self.calls.append(("step", (step.place.epoch, step.place.step)))

    def on_evaluate(self, trainer: Trainer, epoch: int, figures: Any) -> None:
        self.calls.append(("evaluate", sorted(figures)))

    def on_epoch_end(self, trainer: Trainer, epoch: Epoch) -> None:
        self.calls.append(("epoch_end", epoch.number))

    def on_save(self, trainer: Trainer, saved: Any) -> None:
        self.calls.append(("save", saved.step))

    def on_error(self, trainer: Trainer, error: BaseException) -> None:
        self.calls.append(("error", str(error)))

    def on_fit_end(self, trainer: Trainer, epochs: int) -> None:
        self.calls.append(("fit_end", epochs))


def validated(epoch: Epoch, losses: list[float]) -> Epoch:
    """Return the epoch with its validation loss, taken from `losses`."""
    return replace(epoch, validation={"loss": losses[epoch.number - 1]})


class Scripted(EarlyStopping):
    """Early stopping that sees the given losses."""

    def __init__(self, losses: list[float], **options: Any) -> None:
        super().__init__("loss", **options)
        self.losses = losses

    def on_epoch_end(self, trainer: Trainer, epoch: Epoch) -> None:
        super().on_epoch_end(trainer, validated(epoch, self.losses))


class BestOf(SaveBest):
    """A best-model checkpoint that sees the given losses."""

    def __init__(self, directory: Path, losses: list[float]) -> None:
        super().__init__(directory)
        self.losses = losses

    def on_epoch_end(self, trainer: Trainer, epoch: Epoch) -> None:
        super().on_epoch_end(trainer, validated(epoch, self.losses))


def test_code_on_the_page_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(block, str(PAGE), "exec"), {"__name__": "page"})
    events = [json.loads(line)["event"] for line in Path("log.jsonl").read_text().splitlines()]
    assert events[0] == "fit_begin"
    assert events[-1] == "fit_end"
    assert set(events[1:-1]) == {"epoch_end"}


def test_hooks_are_called_in_order() -> None:
    recorder = Recorder()
    with trainer_of(Clicks(), callbacks=[recorder]) as trainer:
        trainer.fit(clicks(2), epochs=2, validation=clicks(1))
    one = [("evaluate", ["auc", "log_loss", "loss"])]
    assert recorder.calls == [
        ("fit_begin", 2),
        ("epoch_begin", 1),
        ("step", (1, 1)),
        ("step", (1, 2)),
        *one,
        ("epoch_end", 1),
        ("epoch_begin", 2),
        ("step", (2, 1)),
        ("step", (2, 2)),
        *one,
        ("epoch_end", 2),
        ("fit_end", 2),
    ]


def test_steps_of_all_threads_are_reported_one_at_a_time() -> None:
    class Counter(Callback):
        inside = total = 0

        def on_step_end(self, trainer: Trainer, step: StepDone) -> None:
            self.inside += 1
            assert self.inside == 1
            self.total += 1
            self.inside -= 1

    counter = Counter()
    with trainer_of(Clicks(), callbacks=[counter], threads=3) as trainer:
        trainer.fit(clicks(40))
    assert counter.total == 40


def test_hooks_that_are_not_overridden_are_not_subscribed() -> None:
    events = Events()
    CallbackRunner(None, [EarlyStopping()], lambda _: None).attach(events)  # type: ignore[arg-type, return-value]
    assert events.listener(StepDone) is None
    assert events.listener(WorkerLost) is None


def test_saves_are_reported_by_the_end_of_fit(tmp_path: Path) -> None:
    recorder = Recorder()
    checkpoints = CheckpointConfig(directory=tmp_path, skip_while_writing=False)
    with trainer_of(Clicks(), callbacks=[recorder], checkpoints=checkpoints) as trainer:
        trainer.fit(clicks(3), epochs=2)
    assert [what for what in recorder.calls if what[0] == "save"] == [("save", 3), ("save", 6)]
    assert recorder.calls[-1] == ("fit_end", 2)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("hook", ["on_fit_begin", "on_step_end", "on_epoch_end", "on_fit_end"])
def test_what_a_callback_raises_stops_training_and_names_it(hook: str, threads: int) -> None:
    def fail(*arguments: object) -> None:
        raise KeyError("mine")

    broken = type("Broken", (Callback,), {hook: fail})()
    recorder = Recorder()
    with trainer_of(Clicks(), callbacks=[recorder, broken], threads=threads) as trainer:
        with pytest.raises(KeyError, match="mine") as raised:
            trainer.fit(clicks(6), epochs=2)
        assert f"raised by the callback Broken.{hook}" in "".join(raised.value.__notes__)
        assert recorder.calls[-1] == ("error", "'mine'")


def test_an_error_of_the_model_is_raised_even_if_on_error_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(Callback):
        def on_error(self, trainer: Trainer, error: BaseException) -> None:
            raise RuntimeError("the handler failed")

    data = [(torch.zeros(2, 3), torch.zeros(2))]  # ids that are not integers
    with trainer_of(Clicks(), callbacks=[Broken()]) as trainer:
        with pytest.raises(Exception, match="int64"):
            trainer.fit(data)
    assert "the handler failed" in caplog.text


@pytest.mark.parametrize(
    ("figures", "options", "epochs", "best"),
    [
        ([3.0, 2.0, 2.5, 2.4, 1.0, 0.5], {"patience": 2}, 4, 2),
        ([3.0, 2.0, 1.0, 0.5, 0.4, 0.3], {"patience": 1}, 6, 6),
        ([3.0, 2.9, 2.8, 2.7, 2.6, 2.5], {"patience": 2, "min_delta": 1.0}, 3, 1),
        ([3.0, 4.0, 5.0, 5.0, 9.0, 9.0], {"patience": 1, "mode": "max"}, 4, 3),
        ([float("nan"), 1.0, float("nan"), 2.0, 0.0, 0.0], {"patience": 2}, 4, 2),
    ],
)
def test_early_stopping_waits_and_ends(
    figures: list[float], options: dict[str, Any], epochs: int, best: int
) -> None:
    stopping = Scripted(figures, **options)
    with trainer_of(Clicks(), callbacks=[stopping]) as trainer:
        history = trainer.fit(clicks(2), epochs=6)
    assert len(history.epochs) == epochs
    assert history.was_stopped == (epochs < 6)
    assert stopping.best_epoch == best


def test_a_log_loss_that_was_asked_for_is_a_figure_of_training_too() -> None:
    stopping = EarlyStopping("train_log_loss")
    with trainer_of(Clicks(), metrics=["log_loss"], callbacks=[stopping]) as trainer:
        history = trainer.fit(clicks(2), epochs=2)
    assert list(history.epochs[-1].metrics) == ["log_loss"]
    with trainer_of(Clicks()) as trainer:  # by default it only repeats the loss
        history = trainer.fit(clicks(2))
    assert list(history.epochs[-1].metrics) == ["auc"]


def test_a_figure_that_there_is_not_is_named() -> None:
    with trainer_of(Clicks(), callbacks=[EarlyStopping("auc")]) as trainer:
        with pytest.raises(
            ConfigError, match=r"monitor='auc'.*available: train_auc, train_loss; pass"
        ):
            trainer.fit(clicks(2), epochs=2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EarlyStopping(patience=0), "patience must be an int >= 1, got 0"),
        (lambda: EarlyStopping(mode="best"), "mode must be 'auto', 'min' or 'max', got 'best'"),
        (lambda: EarlyStopping(min_delta=-1.0), "min_delta must be >= 0, got -1.0"),
        (lambda: LearningRateLogger(0), "every_steps must be an int >= 1 or None, got 0"),
        (lambda: trainer_of(Clicks(), callbacks=[Recorder]), "pass an instance"),
    ],
)
def test_wrong_settings_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_every_callback_hears_of_an_error_even_if_one_fails() -> None:
    class Broken(Callback):
        def on_error(self, trainer: Trainer, error: BaseException) -> None:
            raise RuntimeError("the handler failed")

    recorder = Recorder()
    data = [(torch.zeros(2, 3), torch.zeros(2))]  # ids that are not integers
    with trainer_of(Clicks(), callbacks=[Broken(), recorder]) as trainer:
        with pytest.raises(Exception, match="int64"):
            trainer.fit(data)
    assert [hook for hook, _ in recorder.calls if hook == "error"] == ["error"]


def test_the_same_error_is_reported_in_each_fit() -> None:
    recorder = Recorder()
    error = RuntimeError("no more data")

    def data() -> Iterator[Any]:
        raise error
        yield

    with trainer_of(Clicks(), callbacks=[recorder]) as trainer:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="no more data"):
                trainer.fit(data)
    assert [hook for hook, _ in recorder.calls if hook == "error"] == ["error", "error"]


def test_another_thread_can_stop_a_trainer_without_callbacks() -> None:
    in_second_epoch, stopped = threading.Event(), threading.Event()
    epochs = 0

    def data() -> Iterator[Any]:
        nonlocal epochs
        epochs += 1
        yield from clicks(2)
        if epochs == 2:
            in_second_epoch.set()
            assert stopped.wait(DEADLINE_S)

    with trainer_of(Clicks()) as trainer, ThreadPoolExecutor(1) as pool:
        trainer.stop()  # no fit is running: does nothing
        running = pool.submit(trainer.fit, data, 100)
        assert in_second_epoch.wait(DEADLINE_S)
        trainer.stop()
        stopped.set()
        history = running.result(DEADLINE_S)
    assert len(history.epochs) == 2
    assert history.was_stopped


@pytest.mark.parametrize("each_epoch", [True, False])
def test_a_fit_that_was_ended_early_is_over_for_a_resumed_script(
    each_epoch: bool, tmp_path: Path
) -> None:
    checkpoints = CheckpointConfig(directory=tmp_path, each_epoch=each_epoch)

    def run() -> tuple[int, int]:
        stopping = Scripted([1.0, 2.0, 3.0, 4.0], patience=1)
        with trainer_of(
            Clicks(), callbacks=[stopping], checkpoints=checkpoints, resume="auto"
        ) as trainer:
            first = trainer.fit(clicks(3), epochs=4)
            return len(first.epochs), trainer.distributed.store.info("ads").size

    epochs, rows = run()
    assert epochs == 2
    assert run() == (0, rows)


def test_the_best_epoch_is_saved_and_can_be_loaded(tmp_path: Path) -> None:
    best = SaveBest(tmp_path / "best", "train_loss", mode="max")  # the first epoch, surely
    with trainer_of(Clicks(), callbacks=[best]) as trainer:
        trainer.fit(clicks(4), epochs=1)
        after_one = {name: value.clone() for name, value in trainer.model.named_parameters()}
        assert best.best_epoch == 1
    model = Clicks()
    with trainer_of(model) as trainer:
        trainer.load(tmp_path / "best")
        for name, value in model.named_parameters():
            assert torch.equal(value, after_one[name])


def test_a_resumed_fit_keeps_the_best_model_of_the_earlier_run(tmp_path: Path) -> None:
    checkpoints = CheckpointConfig(directory=tmp_path / "series")

    def run(losses: list[float], epochs: int) -> tuple[float, int]:
        best = BestOf(tmp_path / "best", losses)
        with trainer_of(
            Clicks(), callbacks=[best], checkpoints=checkpoints, resume="auto"
        ) as trainer:
            trainer.fit(clicks(2), epochs=epochs)
        return best.best, best.best_epoch

    assert run([3.0, 1.0], 2) == (1.0, 2)
    saved = (tmp_path / "best" / "manifest.json").read_bytes()
    assert run([3.0, 1.0, 2.0], 3) == (1.0, 2)
    assert (tmp_path / "best" / "manifest.json").read_bytes() == saved
    assert run([3.0, 1.0, 2.0, 0.5], 4) == (0.5, 4)
    assert (tmp_path / "best" / "manifest.json").read_bytes() != saved


def test_learning_rates_follow_the_schedule(caplog: pytest.LogCaptureFixture) -> None:
    rates = LearningRateLogger(every_steps=2)
    schedule = lambda step: 0.5**step  # noqa: E731
    with caplog.at_level(logging.INFO, logger="sparsefleet.train"):
        with trainer_of(Clicks(), callbacks=[rates], schedule=schedule) as trainer:
            trainer.fit(clicks(4))
    assert rates.rates == [
        (2, {"ads": pytest.approx(0.1 * 0.25), "dense": pytest.approx(0.1 * 0.25)}),
        (4, {"ads": pytest.approx(0.1 / 16), "dense": pytest.approx(0.1 / 16)}),
        (4, {"ads": pytest.approx(0.1 / 16), "dense": pytest.approx(0.1 / 16)}),
    ]
    assert "learning rates after 4 steps: ads 0.00625, dense 0.00625" in caplog.text


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[NativeServers]:
    monkeypatch.setenv("SPARSEFLEET_JOB_KEY", JOB_KEY.decode())
    torch.manual_seed(0)
    with NativeServers(2) as running:
        yield running


def role_of(index: int, servers: NativeServers) -> RoleInfo:
    """One of two workers."""
    endpoints = tuple(servers.endpoints)
    return RoleInfo(kind="worker", index=index, worker_num=2, server_endpoints=endpoints)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_all_workers_stop_after_the_same_epoch_and_save_the_same_best(
    servers: NativeServers, mode: str, tmp_path: Path
) -> None:
    figures = {0: [5.0, 4.0, 3.0, 2.0, 1.0], 1: [1.0, 2.0, 3.0, 4.0, 5.0]}  # only one gets worse

    def run(index: int) -> tuple[int, bool, int]:
        fleet = Fleet()
        fleet.init(role_of(index, servers))
        best = SaveBest(tmp_path / "best", "auc")
        with Trainer(
            Clicks(),
            BCE,
            optim.Adagrad(lr=0.1),
            mode=mode,
            config=QUIET,
            fleet=fleet,
            callbacks=[Scripted(figures[index], patience=2), best],
        ) as trainer:
            history = trainer.fit(clicks(6 + index), epochs=5, validation=clicks(2, seed=index))
            return len(history.epochs), history.was_stopped, best.best_epoch

    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(run, index) for index in range(2)]
        found = [future.result(DEADLINE_S) for future in running]
    assert found[0] == found[1]
    assert found[0][:2] == (3, True)


@pytest.mark.parametrize("hook", ["on_epoch_begin", "on_epoch_end"])
def test_what_a_callback_raises_in_one_worker_ends_the_others(
    servers: NativeServers, hook: str
) -> None:
    class Broken(Callback):
        pass

    def fail(*arguments: object) -> None:
        raise KeyError("mine")

    setattr(Broken, hook, fail)

    def run(index: int) -> None:
        fleet = Fleet()
        fleet.init(role_of(index, servers))
        with Trainer(
            Clicks(),
            BCE,
            optim.Adagrad(lr=0.1),
            mode="sync",
            config=QUIET,
            fleet=fleet,
            callbacks=[Broken() if index == 1 else Callback()],
        ) as trainer:
            trainer.fit(clicks(6), epochs=3)

    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(run, index) for index in range(2)]
        found = [future.exception(DEADLINE_S) for future in running]
    assert isinstance(found[1], KeyError)
    assert isinstance(found[0], PeerLostError)
    assert "worker-1" in str(found[0]) or "worker 1" in str(found[0])


def test_several_workers_without_callbacks_cannot_be_stopped(servers: NativeServers) -> None:
    fleet = Fleet()
    fleet.init(role_of(0, servers))
    trainer = Trainer(Clicks(), BCE, optim.Adagrad(lr=0.1), config=QUIET, fleet=fleet)
    with pytest.raises(ConfigError, match=r"pass callbacks=\[Callback\(\)\] on all workers"):
        trainer.stop()
