from __future__ import annotations

import functools
import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from sparsefleet.engine.workload import Outcome
from sparsefleet.errors import ConfigError
from sparsefleet.metrics import AUC, GAUC, Accuracy
from sparsefleet.train.scoring import Figures, Scorer, predictions_for
from sparsefleet.train.trainer_config import TrainerConfig

BCE = nn.BCEWithLogitsLoss()


def scored(output: Any, labels: Any, loss: float = 0.5) -> Outcome:
    return Outcome(len(labels), loss, output, labels)


def two_classes(seed: int, size: int = 100) -> Outcome:
    generator = torch.Generator().manual_seed(seed)
    output = torch.randn(size, generator=generator)
    labels = (torch.rand(size, generator=generator) < torch.sigmoid(output)).float()
    return scored(output, labels, loss=float(BCE(output, labels)))


@pytest.mark.parametrize(
    ("loss", "output", "wanted"),
    [
        (nn.BCEWithLogitsLoss(), [0.0], [0.5]),
        (functional.binary_cross_entropy_with_logits, [0.0], [0.5]),
        (functools.partial(functional.binary_cross_entropy_with_logits), [0.0], [0.5]),
        (nn.CrossEntropyLoss(), [[2.0, 2.0]], [[0.5, 0.5]]),
        (functional.cross_entropy, [[2.0, 2.0]], [[0.5, 0.5]]),
        (nn.NLLLoss(), [[math.log(0.25), math.log(0.75)]], [[0.25, 0.75]]),
        (nn.BCELoss(), [0.25], [0.25]),
        (lambda output, _: output.sum(), [4.0], [4.0]),
    ],
)
def test_predictions_follow_from_the_loss(loss: Any, output: Any, wanted: Any) -> None:
    torch.testing.assert_close(predictions_for(loss)(torch.tensor(output)), torch.tensor(wanted))


def test_merged_parts_are_the_figures_of_the_whole() -> None:
    scorer = Scorer(BCE, None, TrainerConfig())
    batches = [two_classes(seed) for seed in range(6)]
    whole, first, second = scorer.figures(), scorer.figures(), scorer.figures()
    for number, batch in enumerate(batches):
        scorer.add(whole, batch, None)
        scorer.add(first if number % 2 else second, batch, None)
    merged = Figures.from_state(first.state())
    merged.merge(Figures.from_state(second.state()))
    found, wanted = merged.compute(), whole.compute()
    assert found["auc"] == wanted["auc"] > 0.6
    assert found["log_loss"] == wanted["log_loss"] == pytest.approx(wanted["loss"], abs=1e-5)
    assert found["loss"] == pytest.approx(wanted["loss"])


def test_worker_without_data_takes_part() -> None:
    scorer = Scorer(BCE, None, TrainerConfig())
    empty, full = scorer.figures(), scorer.figures()
    scorer.add(full, two_classes(1), None)
    empty.merge(Figures.from_state(full.state()))
    assert empty.compute() == full.compute()
    assert math.isnan(scorer.figures().compute()["loss"])


def test_default_metrics_are_left_out_where_there_are_not_two_classes() -> None:
    scorer = Scorer(nn.MSELoss(), None, TrainerConfig())
    figures = scorer.figures()
    scorer.add(figures, scored(torch.tensor([3.0, -1.0]), torch.tensor([2.5, 0.0])), None)
    assert figures.compute() == {"loss": 0.5}
    figures.merge(scorer.figures())
    assert Figures.from_state(figures.state()).compute() == {"loss": 0.5}


def test_default_metrics_are_left_out_for_outputs_that_are_not_tensors() -> None:
    scorer = Scorer(lambda output, _: output["loss"], None, TrainerConfig())
    figures = scorer.figures()
    scorer.add(figures, scored({"loss": 1}, torch.tensor([1.0])), None)
    assert figures.compute() == {"loss": 0.5}


def test_metrics_asked_for_raise_where_they_do_not_fit() -> None:
    scorer = Scorer(nn.MSELoss(), {"auc": AUC()}, TrainerConfig())
    with pytest.raises(ConfigError, match="predictions must be probabilities"):
        scorer.add(scorer.figures(), scored(torch.tensor([3.0]), torch.tensor([1.0])), None)
    scorer = Scorer(lambda output, _: output["loss"], {"auc": AUC()}, TrainerConfig())
    with pytest.raises(ConfigError, match="returns a dict.*TrainerConfig\\(predictions="):
        scorer.add(scorer.figures(), scored({"p": 1}, torch.tensor([1.0])), None)


def test_metrics_given_stay_empty_and_several_classes_work() -> None:
    accuracy = Accuracy(threshold=None)
    scorer = Scorer(nn.CrossEntropyLoss(), {"accuracy": accuracy}, TrainerConfig())
    figures = scorer.figures()
    scorer.add(figures, scored(torch.eye(3), torch.tensor([0, 1, 1])), None)
    assert figures.compute()["accuracy"] == pytest.approx(2 / 3)
    assert math.isnan(accuracy.compute())


def test_groups_are_taken_from_the_inputs() -> None:
    config = TrainerConfig(groups=lambda inputs: inputs["user"])
    scorer = Scorer(BCE, {"gauc": GAUC()}, config)
    figures = scorer.figures()
    batch = scored(torch.tensor([0.1, 0.2, 2.0, 1.0]), torch.tensor([0.0, 1.0, 0.0, 1.0]))
    scorer.add(figures, batch, {"user": torch.tensor([1, 1, 2, 2])})
    assert figures.compute()["gauc"] == 0.5


def test_predictions_of_the_config_win() -> None:
    config = TrainerConfig(predictions=lambda output: output["click"])
    scorer = Scorer(BCE, None, config)
    assert scorer.predictions({"click": torch.ones(2)}).tolist() == [1.0, 1.0]


def test_recent_figures_are_those_of_the_batches_that_were_kept() -> None:
    scorer = Scorer(BCE, None, TrainerConfig())
    batches = [two_classes(seed) for seed in range(3)]
    whole = scorer.figures()
    for batch in batches:
        scorer.add(whole, batch, None)
    dropped = scored(None, torch.ones(100), loss=whole.compute()["loss"])
    found = scorer.recent([*batches, dropped]).compute()
    assert found["auc"] == whole.compute()["auc"]
    assert found["loss"] == pytest.approx(whole.compute()["loss"])


def test_recent_figures_never_raise() -> None:
    scorer = Scorer(BCE, {"auc": AUC()}, TrainerConfig())
    odd = [scored(torch.zeros(2, 3), torch.zeros(2)), scored(torch.zeros(2, 4), torch.zeros(2))]
    assert scorer.recent(odd).compute() == {"loss": 0.5}
    assert math.isnan(scorer.recent([]).compute()["loss"])


def test_metrics_without_a_loss_are_refused() -> None:
    with pytest.raises(ConfigError, match="loss=None"):
        Scorer(None, {"auc": AUC()}, TrainerConfig())
