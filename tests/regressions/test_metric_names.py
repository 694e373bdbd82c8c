"""Metrics can be given by name."""

from __future__ import annotations

import pytest
from tests.unit.train.click_model import Clicks, clicks, trainer_of

from sparsefleet.errors import ConfigError
from sparsefleet.metrics import AUC


def test_metrics_are_given_by_name() -> None:
    with trainer_of(Clicks(), metrics=["auc", "accuracy", "log_loss"]) as trainer:
        trainer.fit(clicks(2))
        assert trainer.evaluate(clicks(2)).keys() == {"loss", "auc", "accuracy", "log_loss"}


def test_metrics_are_given_as_a_dict() -> None:
    with trainer_of(Clicks(), metrics={"area": AUC()}) as trainer:
        assert trainer.evaluate(clicks(2)).keys() == {"loss", "area"}


@pytest.mark.parametrize("wrong", [["acu"], "auc", [AUC()]])
def test_metrics_of_the_wrong_form_are_refused(wrong: object) -> None:
    with pytest.raises(ConfigError, match="a list of names|names are accuracy, auc"):
        trainer_of(Clicks(), metrics=wrong)
