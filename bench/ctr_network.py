"""CTR-DNN as each side of bench/ctr_dnn.py has it: plain torch, our tables, matrix products alone.

Letters: B examples, F slots.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

from ctr_batches import DIM, NUM_COUNTS, NUM_IDS, NUM_SLOTS, WIDTHS
from sparsefleet import optim
from sparsefleet.data import Slot
from sparsefleet.nn import SparseEmbedding
from sparsefleet.store import Uniform

LR = 0.1
ONE_ID_SLOTS = (
    Slot("dense", "float", (NUM_COUNTS,)),
    *(Slot(f"C{column}", shape=()) for column in range(1, NUM_SLOTS + 1)),
    Slot("label", shape=()),
)
"""Of a MultiSlot line; with one id a slot, columns are int64[B]."""


class Products:
    """The matrix products of one step, nothing else: what no training can be faster than."""

    def __init__(self, batch_size: int) -> None:
        pairs = list(itertools.pairwise(WIDTHS))
        self.weights = [torch.randn(wide, narrow).T.contiguous() * 0.05 for wide, narrow in pairs]
        self.weight_gradients = [torch.empty_like(weight) for weight in self.weights]
        self.values = [torch.randn(batch_size, width) for width in WIDTHS]
        self.value_gradients = [torch.randn(batch_size, width) for width in WIDTHS]

    def step(self) -> None:
        for x, weight, y in zip(self.values, self.weights, self.values[1:], strict=False):
            torch.mm(x, weight.T, out=y)
        for i in reversed(range(len(self.weights))):
            torch.mm(self.value_gradients[i + 1].T, self.values[i], out=self.weight_gradients[i])
            torch.mm(self.value_gradients[i + 1], self.weights[i], out=self.value_gradients[i])


def layers() -> nn.Sequential:
    """Three layers of 400 with ReLU, and the two logits."""
    made: list[nn.Module] = []
    for wide, narrow in itertools.pairwise(WIDTHS):
        made += [nn.Linear(wide, narrow), nn.ReLU()]
    return nn.Sequential(*made[:-1])


class PlainModel(nn.Module):
    """What one writes without us."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(NUM_IDS, DIM, sparse=True)
        nn.init.uniform_(self.embedding.weight, -0.05, 0.05)
        self.layers = layers()

    def forward(self, counts: Tensor, ids: Tensor) -> Tensor:
        logits: Tensor = self.layers(torch.cat([self.embedding(ids).flatten(1), counts], dim=1))
        return logits


class FleetModel(nn.Module):
    """The same with its rows in a table."""

    def __init__(self, lr: float = LR) -> None:
        super().__init__()
        self.embedding = SparseEmbedding(
            "ids", DIM, optimizer=optim.SGD(lr=lr), initializer=Uniform(-0.05, 0.05)
        )
        self.layers = layers()

    def forward(self, counts: Tensor, ids: Tensor) -> Tensor:
        logits: Tensor = self.layers(torch.cat([self.embedding(ids).flatten(1), counts], dim=1))
        return logits


class FleetModelOfSlots(FleetModel):
    """The same for columns of `ONE_ID_SLOTS`."""

    def forward(self, dense: Tensor, **slots: Tensor) -> Tensor:  # type: ignore[override]
        ids = torch.stack([slots[f"C{column}"] for column in range(1, NUM_SLOTS + 1)], dim=1)
        return super().forward(dense, ids)
