"""Unusual models and optimizers that still train correctly."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.unit.train.click_model import BCE, QUIET, Clicks, clicks, trainer_of
from torch import Tensor, nn

from sparsefleet import optim
from sparsefleet.errors import NonFiniteLossError
from sparsefleet.fleet import Fleet
from sparsefleet.metrics import AUC
from sparsefleet.nn import SparseEmbedding
from sparsefleet.train import Trainer, TrainerConfig

MODES = ["local", "sync", "half_async", "async", "hybrid", "geo"]
SGD = optim.SGD(lr=1.0)


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    torch.manual_seed(0)


def sgd_trainer(model: nn.Module, mode: str, **options: object) -> Trainer:
    return Trainer(model, BCE, SGD, mode=mode, config=QUIET, fleet=Fleet(), **options)


def test_threads_share_an_optimizer_that_only_torch_knows() -> None:
    model = Clicks()
    model.rows.own_optimizer = optim.Adagrad()
    nadam = torch.optim.NAdam(model.parameters(), lr=0.01)
    with Trainer(model, BCE, nadam, threads=2, config=QUIET, fleet=Fleet()) as trainer:
        history = trainer.fit(clicks(100), epochs=3)
        assert trainer.distributed.replicas(2)[0] is not model
    assert history.last.steps == 100
    assert history.last.loss < history.epochs[0].loss


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.NAdam])
def test_schedule_reaches_the_model_whoever_steps(kind: type[torch.optim.Optimizer]) -> None:
    model = Clicks()
    model.rows.own_optimizer = optim.Adagrad()
    optimizer = kind(model.parameters(), lr=0.1)
    options = {"config": QUIET, "fleet": Fleet(), "schedule": lambda step: float(step < 3)}
    with Trainer(model, BCE, optimizer, **options) as trainer:
        before = model.head.weight.clone()
        trainer.fit(clicks(3))
        after = model.head.weight.clone()
        trainer.fit(clicks(3))
    assert not torch.equal(before, after)
    assert torch.equal(after, model.head.weight)


@pytest.mark.parametrize("mode", MODES)
def test_schedule_reaches_tables_and_continues_after_loading(mode: str, tmp_path: Path) -> None:
    def trainer() -> Trainer:
        return sgd_trainer(Clicks(), mode, schedule=lambda step: float(step < 4))

    with trainer() as first:
        first.fit(clicks(2))
        rows = first.predict(clicks(1))
        first.fit(clicks(2))
        assert not torch.equal(first.predict(clicks(1)), rows)
        first.save(tmp_path / "model")
        wanted = first.predict(clicks(1))
        first.load(tmp_path / "model")
        first.fit(clicks(2))
        assert torch.equal(first.predict(clicks(1)), wanted)
    with trainer() as second:
        second.load(tmp_path / "model")
        second.fit(clicks(2))
        assert torch.equal(second.predict(clicks(1)), wanted)


@pytest.mark.parametrize("mode", MODES)
def test_fit_may_be_called_again_after_a_failure(mode: str) -> None:
    ids, labels = clicks(1)[0]
    bad = (ids, labels * float("nan"))
    with sgd_trainer(Clicks(), mode, threads=2) as trainer:
        trainer.fit(clicks(), epochs=2)
        with pytest.raises(NonFiniteLossError):
            trainer.fit([*clicks(4), bad, *clicks(4)])
        assert trainer.fit(clicks()).last.steps == 12


class Words(nn.Module):
    """ids int64[B, L] -> float32[B]; nothing but a table."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = SparseEmbedding("words", 4, padding_idx=0)

    def forward(self, ids: Tensor) -> Tensor:
        return self.rows(ids).sum((1, 2))


@pytest.mark.parametrize("mode", MODES)
def test_batch_of_padding_alone_is_a_step_like_any_other(mode: str) -> None:
    batches = [(torch.full((3, 2), word), torch.ones(3)) for word in (0, 1, 0, 0)]
    with sgd_trainer(Words(), mode) as trainer:
        assert trainer.fit(batches).last.steps == 4


def test_model_outlives_its_trainer_with_its_rows() -> None:
    model = Clicks()
    with trainer_of(model) as trainer:
        trainer.fit(clicks())
        wanted = trainer.predict(clicks(1))
    assert torch.equal(torch.sigmoid(model.eval()(clicks(1)[0][0])), wanted)
    other = Clicks()
    other.load_state_dict(model.state_dict())
    assert torch.equal(torch.sigmoid(other.eval()(clicks(1)[0][0])), wanted)
    with trainer_of(model) as trainer:
        assert torch.equal(trainer.predict(clicks(1)), wanted)
        trainer.fit(clicks())


def test_evaluation_leaves_parts_in_the_mode_they_were_in() -> None:
    model = nn.Sequential(Clicks(), nn.Identity())
    model.train()
    model[1].eval()
    with trainer_of(model) as trainer:
        trainer.evaluate(clicks(1))
    assert model.training
    assert not model[1].training


def test_last_batch_of_one_example_that_the_model_squeezes_is_scored() -> None:
    class Squeezed(Clicks):
        def forward(self, ids: Tensor) -> Tensor:
            return super().forward(ids).squeeze()

    data = [*clicks(2), *clicks(1, size=1)]

    def loss(output: Tensor, labels: Tensor) -> Tensor:
        return BCE(output.view(-1), labels)

    config = TrainerConfig(quiet=True, predictions=torch.sigmoid)
    with trainer_of(Squeezed(), loss, config, metrics={"auc": AUC()}) as trainer:
        trainer.fit(clicks(), epochs=8)
        assert trainer.evaluate(data)["auc"] > 0.5
        assert len(trainer.predict(data)) == 65
