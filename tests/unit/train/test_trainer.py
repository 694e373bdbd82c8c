from __future__ import annotations

import math
import re
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.unit.train.click_model import BCE, QUIET, Clicks, clicks, trainer_of
from torch import Tensor, nn

from sparsefleet import Predictor
from sparsefleet.errors import ConfigError, NonFiniteLossError
from sparsefleet.fleet import Fleet, RoleInfo
from sparsefleet.metrics import AUC, Accuracy
from sparsefleet.nn import SparseEmbedding
from sparsefleet.train import Trainer, TrainerConfig


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("threads", [1, 3])
def test_fit_learns_and_says_what_it_did(threads: int) -> None:
    with trainer_of(Clicks(), threads=threads) as trainer:
        history = trainer.fit(clicks(), epochs=8)
        figures = trainer.evaluate(clicks(seed=1))
    assert [epoch.number for epoch in history.epochs] == list(range(1, 9))
    assert all(epoch.examples == 12 * 32 and epoch.steps == 12 for epoch in history.epochs)
    assert history.last.loss < history.epochs[0].loss
    assert history.last.metrics["auc"] > 0.9
    assert figures["auc"] > 0.9
    assert figures["log_loss"] == pytest.approx(figures["loss"], abs=1e-4)
    assert history.time_shares.compute > 0
    assert "%" in history.bottleneck


def test_fit_trains_as_a_plain_loop_of_torch_does() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1), nn.Flatten(0))
    plain = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1), nn.Flatten(0))
    plain.load_state_dict(model.state_dict())
    data = [(ids.float() / 40, labels) for ids, labels in clicks()]
    optimizer = torch.optim.Adam(plain.parameters(), lr=0.01)
    losses = []
    for inputs, labels in data * 2:
        loss = BCE(plain(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    adam = torch.optim.Adam(model.parameters(), lr=0.01)
    with Trainer(model, BCE, adam, config=QUIET, fleet=Fleet()) as trainer:
        history = trainer.fit(data, epochs=2)
        predicted = trainer.predict(data)
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    assert history.epochs[1].loss == pytest.approx(np.mean(losses[12:]), abs=1e-5)
    wanted = torch.sigmoid(torch.cat([plain(inputs) for inputs, _ in data]))
    torch.testing.assert_close(predicted, wanted.detach(), atol=1e-5, rtol=1e-5)


def test_any_optimizer_of_torch_does_locally() -> None:
    model = nn.Linear(3, 1)
    nadam = torch.optim.NAdam(model.parameters(), lr=0.05)
    data = [(ids.float() / 40, labels.unsqueeze(1)) for ids, labels in clicks()]
    with Trainer(model, BCE, nadam, config=QUIET, fleet=Fleet()) as trainer:
        history = trainer.fit(data, epochs=6)
    assert history.last.loss < history.epochs[0].loss


def test_validation_is_evaluated_after_every_epoch() -> None:
    with trainer_of(Clicks()) as trainer:
        history = trainer.fit(clicks(), epochs=2, validation=clicks(seed=5))
        again = trainer.evaluate(clicks(seed=5))
    assert all(epoch.validation is not None for epoch in history.epochs)
    assert history.last.validation == again


@pytest.mark.parametrize("threads", [1, 3])
def test_evaluation_and_prediction_create_no_row_and_change_nothing(threads: int) -> None:
    with trainer_of(Clicks(), threads=threads) as trainer:
        trainer.fit(clicks())
        before = trainer.distributed.store.info("ads").size
        held_out = [(ids + 1000, labels) for ids, labels in clicks(seed=2)]
        first, second = trainer.evaluate(held_out), trainer.evaluate(held_out)
        trainer.predict(held_out)
        assert trainer.distributed.store.info("ads").size == before
        assert trainer.model.training
    assert first == second


@pytest.mark.parametrize("threads", [1, 3])
def test_predictions_come_in_the_order_of_the_data(threads: int) -> None:
    class Echo(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            return inputs + 0 * self.bias

    data = [(torch.full((2,), float(number)), torch.zeros(2)) for number in range(50)]
    with trainer_of(Echo(1, 1), nn.MSELoss(), threads=threads) as trainer:
        found = trainer.predict(data)
        unlabelled = trainer.predict([inputs for inputs, _ in data], labelled=False)
        bare = trainer.predict([inputs for inputs, _ in data])
        assert trainer.predict([]).shape == (0,)
    assert found.tolist() == [number for number in range(50) for _ in range(2)]
    assert torch.equal(found, unlabelled)
    assert torch.equal(found, bare)


def test_export_takes_inputs_without_labels(tmp_path: Path) -> None:
    class Sum(nn.Linear):
        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            return (left + right) * self.bias

    inputs = {"left": torch.rand(3), "right": torch.rand(3)}
    with trainer_of(Sum(1, 1), nn.MSELoss()) as trainer:
        trainer.export(tmp_path / "export", inputs, onnx=False)
        wanted = trainer.predict([inputs])
    torch.testing.assert_close(
        torch.from_numpy(Predictor(tmp_path / "export").predict(inputs)), wanted
    )


def test_loss_of_an_empty_batch_names_the_cause() -> None:
    with trainer_of(nn.Linear(1, 1), nn.MSELoss()) as trainer:
        with pytest.raises(NonFiniteLossError, match="batch 2; .* The batch has no examples"):
            trainer.fit(
                [(torch.rand(2, 1), torch.rand(2, 1)), (torch.rand(0, 1), torch.rand(0, 1))]
            )


def test_model_may_compute_the_loss_itself() -> None:
    class Pairs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows = SparseEmbedding("words", 4)

        def forward(self, center: Tensor, other: Tensor, clicked: Tensor) -> Tensor:
            logits = (self.rows(center) * self.rows(other)).sum(1)
            return BCE(logits, clicked)

    data = [(ids[:, 0], ids[:, 1], labels) for ids, labels in clicks()]
    with trainer_of(Pairs(), None) as trainer:
        history = trainer.fit(data, epochs=2)
        figures = trainer.evaluate(data)
        with pytest.raises(ConfigError, match="loss=None"):
            trainer.predict(data)
    assert history.last.examples == 12 * 32
    assert history.last.metrics == {}
    assert list(figures) == ["loss"]
    assert figures["loss"] < history.epochs[0].loss


def test_metrics_of_the_user_are_given_by_name() -> None:
    metrics = {"auc": AUC(), "accuracy": Accuracy()}
    with trainer_of(Clicks(), metrics=metrics) as trainer:
        history = trainer.fit(clicks(), epochs=2)
        assert list(trainer.evaluate(clicks())) == ["loss", "auc", "accuracy"]
    assert list(history.last.metrics) == ["auc", "accuracy"]


def test_data_without_batches_trains_nothing() -> None:
    with trainer_of(Clicks(), threads=2) as trainer:
        history = trainer.fit([], epochs=2)
    assert history.examples == 0
    assert math.isnan(history.last.loss)
    assert history.bottleneck.startswith("nothing was trained")


def test_threads_run_out_of_data_at_different_times() -> None:
    with trainer_of(Clicks(), mode="half_async", threads=3) as trainer:
        history = trainer.fit(clicks(7), epochs=3)
    assert [epoch.steps for epoch in history.epochs] == [7, 7, 7]


def test_torch_runs_with_the_configured_threads_and_then_as_before() -> None:
    seen = []

    class Looks(Clicks):
        def forward(self, ids: Tensor) -> Tensor:
            seen.append((torch.get_num_threads(), threading.current_thread().name))
            return super().forward(ids)

    before = torch.get_num_threads()
    with trainer_of(Looks(), threads=2) as trainer:
        trainer.fit(clicks(4))
    with trainer_of(Looks(), config=TrainerConfig(quiet=True, torch_threads=2)) as trainer:
        trainer.fit(clicks(1))
    assert {count for count, _ in seen[:-1]} == {1}
    assert seen[-1] == (2, threading.current_thread().name)
    assert torch.get_num_threads() == before


def test_prefetching_trains_on_every_batch_once() -> None:
    config = TrainerConfig(quiet=True, prefetch=True)
    with trainer_of(Clicks(), config=config, threads=2) as trainer:
        history = trainer.fit(clicks(9), epochs=2)
    assert [epoch.examples for epoch in history.epochs] == [9 * 32, 9 * 32]


def test_progress_is_shown_with_a_summary(capsys: pytest.CaptureFixture[str]) -> None:
    with trainer_of(Clicks(), config=TrainerConfig()) as trainer:
        trainer.fit(clicks(), epochs=2, validation=clicks())
    shown = capsys.readouterr().out
    assert re.search(r"epoch 1/2  100%  [\d,]+ examples/s  loss 0\.\d+  AUC 0\.\d+  40 rows", shown)
    assert re.search(r"epoch 2/2  validation  loss 0\.\d+  auc", shown)
    assert "trained 768 examples" in shown
    assert "bottleneck: " in shown
    assert "where the time went" in shown


def test_quiet_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with trainer_of(Clicks()) as trainer:
        trainer.fit(clicks(), epochs=2, validation=clicks())
    assert capsys.readouterr() == ("", "")


def test_saved_model_predicts_the_same_when_loaded(tmp_path: Path) -> None:
    with trainer_of(Clicks()) as trainer:
        trainer.fit(clicks())
        wanted = trainer.predict(clicks(seed=3))
        trainer.save(tmp_path / "model")
        more = trainer.fit(clicks()).last.loss
    torch.manual_seed(9)
    with trainer_of(Clicks()) as trainer:
        assert not torch.equal(trainer.predict(clicks(seed=3)), wanted)
        trainer.load(tmp_path / "model")
        assert torch.equal(trainer.predict(clicks(seed=3)), wanted)
        assert trainer.fit(clicks()).last.loss == pytest.approx(more, abs=1e-6)


def test_schedule_reaches_the_optimizers() -> None:
    model = nn.Linear(1, 1, bias=False)
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    data = [(torch.ones(1, 1), torch.zeros(1))] * 4
    before = model.weight.item()
    trainer = Trainer(
        model,
        lambda output, _: output.sum(),
        sgd,
        config=QUIET,
        schedule=lambda step: 0.5**step,
        fleet=Fleet(),
    )
    with trainer:
        trainer.fit(data)
    assert model.weight.item() == pytest.approx(before - 1.875, abs=1e-5)


class ServerFleet(Fleet):
    """A fleet whose process is a server that stops serving at once."""

    served = 0

    @property
    def is_initialized(self) -> bool:
        return True

    @property
    def role(self) -> RoleInfo:
        return RoleInfo(kind="server", server_endpoints=("127.0.0.1:9100",))

    def run_server(self) -> None:
        self.served += 1


@pytest.mark.parametrize("call", ["fit", "evaluate", "predict", "save", "load"])
def test_server_process_serves_and_ends(call: str) -> None:
    model, fleet = Clicks(), ServerFleet()
    optimizer = torch.optim.Adagrad(model.parameters())
    trainer = Trainer(model, BCE, optimizer, config=QUIET, fleet=fleet)
    with pytest.raises(SystemExit) as ended, trainer:
        getattr(trainer, call)([])
    assert ended.value.code == 0
    assert fleet.served == 1
