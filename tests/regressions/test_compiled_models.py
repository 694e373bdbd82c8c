"""A model, or its dense part, goes through torch.compile and trains."""

from __future__ import annotations

import pytest
import torch
from tests.unit.train.click_model import Clicks, clicks, trainer_of


@pytest.mark.filterwarnings("ignore")  # warnings from torch's own tracing
@pytest.mark.parametrize("threads", [1, 2])
def test_a_compiled_model_trains(threads: int) -> None:
    torch.manual_seed(0)
    model = torch.compile(Clicks(), backend="eager")
    with trainer_of(model, threads=threads) as trainer:
        history = trainer.fit(clicks(), epochs=2)
        assert history.epochs[1].loss < history.epochs[0].loss
        assert trainer.evaluate(clicks(seed=1))["auc"] > 0.5


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_dense_part_trains_like_the_plain_one() -> None:
    losses = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = Clicks()
        if compiled:
            model.head.compile(backend="eager")
        with trainer_of(model) as trainer:
            losses.append([epoch.loss for epoch in trainer.fit(clicks(), epochs=2).epochs])
    assert losses[0] == pytest.approx(losses[1])
