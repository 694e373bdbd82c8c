from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.unit.train.click_model import BCE, QUIET, Clicks, clicks, trainer_of
from torch import Tensor, nn

from sparsefleet import optim
from sparsefleet.errors import ConfigError, NonFiniteLossError
from sparsefleet.fleet import Fleet
from sparsefleet.train import Trainer, TrainerConfig


def notes_of(error: BaseException) -> str:
    return "\n".join(getattr(error, "__notes__", ["Python 3.10 has no notes"]))


@pytest.mark.parametrize("threads", [1, 2])
def test_non_finite_loss_stops_and_names_the_place(threads: int) -> None:
    data: list[Any] = clicks(4)
    data[2] = (data[2][0], data[2][1] * float("nan"))
    with trainer_of(Clicks(), threads=threads) as trainer:
        with pytest.raises(
            NonFiniteLossError,
            match=r"loss is nan in epoch 1, worker 0, thread \d, step \d.*batch 3;",
        ):
            trainer.fit(data)


@pytest.mark.parametrize("threads", [1, 2])
def test_non_finite_loss_can_be_skipped_and_is_counted(threads: int) -> None:
    data: list[Any] = clicks(6)
    for number in (1, 4):
        data[number] = (data[number][0], data[number][1] * float("inf"))
    config = TrainerConfig(quiet=True, non_finite_loss="skip")
    with trainer_of(Clicks(), config=config, threads=threads) as trainer:
        history = trainer.fit(data)
        assert all(bool(p.isfinite().all()) for p in trainer.model.parameters())
    assert (history.last.steps, history.last.skipped) == (4, 2)
    assert history.last.examples == 4 * 32
    assert math.isfinite(history.last.loss)


def test_loss_that_is_not_a_scalar_is_reported_with_its_shape() -> None:
    with trainer_of(Clicks(), nn.BCEWithLogitsLoss(reduction="none")) as trainer:
        with pytest.raises(ConfigError, match=r"a tensor of shape \[32\].*\.mean\(\)"):
            trainer.fit(clicks())
    with trainer_of(Clicks(), lambda *_: 0.5) as trainer:
        with pytest.raises(ConfigError, match="must be a scalar tensor, got a float"):
            trainer.fit(clicks())


@pytest.mark.parametrize("threads", [1, 3])
def test_error_of_the_user_is_raised_itself_with_its_place(threads: int) -> None:
    class Broken(Clicks):
        def forward(self, ids: Tensor) -> Tensor:
            if ids[0, 0] == 777:
                raise KeyError("no such feature")
            return super().forward(ids)

    data = clicks(8)
    data[5][0][0, 0] = 777
    with trainer_of(Broken(), threads=threads) as trainer:
        with pytest.raises(KeyError, match="no such feature") as found:
            trainer.fit(data)
        assert re.search("epoch 1, worker 0, thread .*batch 6|no notes", notes_of(found.value))
        assert "forward" in [entry.name for entry in found.traceback]
        history = trainer.fit(clicks())  # the trainer has recovered
    assert history.last.steps == 12


@pytest.mark.parametrize("threads", [1, 2])
def test_error_in_the_data_is_raised_itself(threads: int) -> None:
    def broken() -> Iterator[Any]:
        yield from clicks(3)
        raise OSError("disk gone")

    with trainer_of(Clicks(), threads=threads) as trainer:
        with pytest.raises(OSError, match="disk gone"):
            trainer.fit(broken)
        with pytest.raises(OSError, match="disk gone"):
            trainer.evaluate(broken)


def test_threads_that_wait_for_a_failed_one_are_woken() -> None:
    class FailsLate(Clicks):
        def forward(self, ids: Tensor) -> Tensor:
            if ids[0, 0] == 777:
                raise KeyError("no such feature")
            return super().forward(ids)

    data = clicks(2)
    data[1][0][0, 0] = 777
    with trainer_of(FailsLate(), mode="half_async", threads=2) as trainer:
        with pytest.raises(KeyError, match="no such feature"):
            trainer.fit(data)  # the other thread has met at the end of its step, and waits


def test_interrupt_is_passed_on_and_training_can_continue() -> None:
    def interrupted() -> Iterator[Any]:
        yield from clicks(2)
        raise KeyboardInterrupt

    with trainer_of(Clicks(), threads=2) as trainer:
        with pytest.raises(KeyboardInterrupt):
            trainer.fit(interrupted)
        assert trainer.fit(clicks()).last.steps == 12


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "deepfm"}, "model must be a torch.nn.Module, got a str"),
        (
            {"loss": nn.MSELoss},
            r"loss must be an instance, got the class MSELoss: pass MSELoss\(\)",
        ),
        ({"loss": 3}, "loss must be a function"),
        ({"threads": 0}, "threads must be an int >= 1, got 0"),
        ({"mode": "asink"}, "got 'asink'; did you mean 'async'"),
        ({"model": nn.ReLU()}, "nothing to train"),
    ],
)
def test_bad_arguments_are_named(change: dict[str, Any], message: str) -> None:
    options = {"model": Clicks(), "loss": BCE, "optimizer": optim.SGD(lr=0.1), **change}
    with pytest.raises(ConfigError, match=message):
        Trainer(**options, config=QUIET, fleet=Fleet())


def test_bad_calls_are_named() -> None:
    trainer = trainer_of(Clicks())
    with pytest.raises(ConfigError, match="epochs must be an int >= 1, got 0"):
        trainer.fit(clicks(), epochs=0)
    with pytest.raises(ConfigError, match="only once, but there are 2 epochs"):
        trainer.fit(iter(clicks()), epochs=2)
    with pytest.raises(ConfigError, match="batch 1 must be"):
        trainer.fit([torch.zeros(3)])
    trainer.close()
    trainer.close()
    with pytest.raises(ConfigError, match="closed"):
        trainer.fit(clicks())


def test_what_the_data_raises_is_not_blamed_on_the_batch_before() -> None:
    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        yield from clicks(3)
        raise KeyError("no such column")

    with trainer_of(Clicks()) as trainer, pytest.raises(KeyError) as found:
        trainer.fit(batches)
    assert "batch 3" not in notes_of(found.value)
