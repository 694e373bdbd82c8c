"""`Trainer.shrink` removes what eviction rules name."""

from __future__ import annotations

import torch
from tests.unit.train.click_model import BCE, QUIET
from torch import nn

from sparsefleet import optim
from sparsefleet.fleet import Fleet
from sparsefleet.nn import SparseEmbedding
from sparsefleet.store import Evict
from sparsefleet.train import Trainer


def test_idle_rows_go_and_tables_without_a_rule_stay_whole() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ads = SparseEmbedding("ads", 2, eviction=Evict(untouched_steps=3))
            self.users = SparseEmbedding("users", 2)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return (self.ads(ids) * self.users(ids)).sum(1)

    labels = torch.ones(4)
    first, later = (torch.arange(4), labels), (torch.arange(4, 8), labels)
    with Trainer(Model(), BCE, optim.SGD(lr=0.1), config=QUIET, fleet=Fleet()) as trainer:
        trainer.fit([first, *[later] * 6])
        assert trainer.shrink() == {"ads": 4}
        assert trainer.shrink() == {"ads": 0}
        assert trainer.distributed.store.info("users").size == 8
