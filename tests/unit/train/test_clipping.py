"""Gradients clipped to a norm, rows and dense parameters together."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.unit.train.click_model import BCE, clicks
from torch import nn

from sparsefleet import optim
from sparsefleet.errors import ConfigError
from sparsefleet.fleet import Fleet
from sparsefleet.nn import SparseEmbeddingBag
from sparsefleet.train import Trainer, TrainerConfig


class Model(nn.Module):
    def __init__(self, rows: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rows, self.head = rows, nn.Linear(4, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.rows(ids)).squeeze(1) * 20


@pytest.mark.parametrize("mode", ["local", "async"])
def test_clipped_training_equals_that_of_torch(mode: str) -> None:
    ours, plain = Model(SparseEmbeddingBag("ads", 4)), Model(nn.EmbeddingBag(40, 4, mode="mean"))
    config = TrainerConfig(quiet=True, clip_grad_norm=0.5)
    optimizer = optim.SGD(lr=0.3)
    data = clicks(6)
    with Trainer(ours, BCE, optimizer, mode=mode, config=config, fleet=Fleet()) as trainer:
        trainer.evaluate(data)
        store = trainer.distributed.store
        start = store.pull("ads", np.arange(40))
        with torch.no_grad():
            plain.rows.weight.copy_(torch.from_numpy(start))
        for batch in data:
            trainer.fit([batch])
    twin = torch.optim.SGD(plain.parameters(), lr=0.3)
    norms = []
    for ids, labels in data:
        twin.zero_grad()
        BCE(plain(ids), labels).backward()
        norms.append(float(nn.utils.clip_grad_norm_(plain.parameters(), 0.5)))
        twin.step()
    assert max(norms) > 0.5
    for mine, theirs in zip(ours.head.parameters(), plain.head.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)


def test_collective_training_refuses_it() -> None:
    config = TrainerConfig(quiet=True, clip_grad_norm=1.0)
    model = nn.Linear(3, 1)
    with pytest.raises(ConfigError, match="clip_grad_norm"):
        Trainer(model, BCE, optim.SGD(), mode="collective", config=config, fleet=Fleet())
