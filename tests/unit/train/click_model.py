"""A small click model, data that it can learn, and a trainer for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sparsefleet import optim
from sparsefleet.data import MultiSlot, Slot
from sparsefleet.fleet import Fleet
from sparsefleet.nn import SparseEmbedding, SparseEmbeddingBag
from sparsefleet.train import Trainer, TrainerConfig

BCE = nn.BCEWithLogitsLoss()
QUIET = TrainerConfig(quiet=True)


class Clicks(nn.Module):
    """ids int64[B, 3] -> logits float32[B]."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = SparseEmbeddingBag("ads", 4)
        self.head = nn.Linear(4, 1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.rows(ids)).squeeze(1)


AD_SLOTS = MultiSlot(Slot("ad", "uint64", ()), Slot("click", "float", ()))


class AdClicks(nn.Module):
    """ad int64[B] -> logits float32[B], each read from the ad's row; for files of `AD_SLOTS`."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.ads = SparseEmbedding("ads", 1)

    def forward(self, ad: Tensor) -> Tensor:
        return self.ads(ad).squeeze(1)


def clicks(num_batches: int = 12, size: int = 32, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    """Batches in which small ids are clicked."""
    generator = torch.Generator().manual_seed(seed)
    batches = []
    for _ in range(num_batches):
        ids = torch.randint(0, 40, (size, 3), generator=generator)
        batches.append((ids, (ids.float().mean(1) < 20).float()))
    return batches


def trainer_of(
    model: nn.Module, loss: Any = BCE, config: TrainerConfig = QUIET, **options: Any
) -> Trainer:
    optimizer = optim.Adagrad(lr=0.1)
    return Trainer(model, loss, optimizer, config=config, fleet=Fleet(), **options)
