from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.unit.zoo.cases import CASES, Case, labels_of, make_batch

from sparsefleet import Predictor, Trainer, TrainerConfig, optim

IN_EVERY_RUN = ("wide_deep",)


def cases() -> list[Any]:
    """Most are slow, as recording a graph takes seconds; test_online.py runs with the job tests."""
    return [
        pytest.param(case, id=name, marks=() if name in IN_EVERY_RUN else pytest.mark.slow)
        for name, case in CASES.items()
    ]


@pytest.mark.parametrize("case", cases())
def test_a_model_learns_and_its_export_predicts_the_same(case: Case, tmp_path: Path) -> None:
    torch.manual_seed(1)
    batch = (make_batch(5, without=case.without), labels_of(case))
    asked = (make_batch(5, without=("next", "unseen")), labels_of(case))
    config = TrainerConfig(quiet=True)
    with Trainer(case.make(), case.loss, optim.Adagrad(lr=0.1), config=config) as trainer:
        first = trainer.evaluate([batch])["loss"]
        trainer.fit([batch] * 30)
        assert trainer.evaluate([batch])["loss"] < 0.7 * first
        trainer.export(tmp_path, asked, onnx=False)
        wanted = trainer.predict([asked]).numpy()
    predictor = Predictor(tmp_path)
    used = {item.name for item in predictor.schema.inputs}
    inputs = {name: value for name, value in asked[0].items() if name in used}
    assert np.abs(predictor.predict(inputs) - wanted).max() < 1e-6
    fewer = {
        name: (value[0][:2], value[1][:2]) if isinstance(value, tuple) else value[:2]
        for name, value in make_batch(6, without=("next", "unseen")).items()
        if name in used
    }
    assert len(predictor.predict(fewer)) == 2
