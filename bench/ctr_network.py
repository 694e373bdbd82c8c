"""CTR-DNN in plain torch, its layers alone and its products alone; without sparsefleet."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

from ctr_batches import DIM, NUM_IDS, WIDTHS

LR = 0.1


class Products:
    """The matrix products of one step and nothing else: no training can be faster."""

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


class DenseStep:
    """Forward pass, loss and backward pass of the layers, down to the gradients of the rows."""

    def __init__(self, batch_size: int) -> None:
        self._layers = layers()
        self._inputs = torch.randn(batch_size, WIDTHS[0], requires_grad=True)
        self._clicks = torch.randint(0, WIDTHS[-1], (batch_size,))

    def step(self) -> None:
        nn.functional.cross_entropy(self._layers(self._inputs), self._clicks).backward()
        for tensor in (self._inputs, *self._layers.parameters()):
            tensor.grad = None


def layers() -> nn.Sequential:
    """Three layers of 400 with ReLU, and two logits."""
    made: list[nn.Module] = []
    for wide, narrow in itertools.pairwise(WIDTHS):
        made += [nn.Linear(wide, narrow), nn.ReLU()]
    return nn.Sequential(*made[:-1])


class PlainModel(nn.Module):
    """The model as a user writes it without sparsefleet."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(NUM_IDS, DIM, sparse=True)
        nn.init.uniform_(self.embedding.weight, -0.05, 0.05)
        self.layers = layers()

    def forward(self, counts: Tensor, ids: Tensor) -> Tensor:
        logits: Tensor = self.layers(torch.cat([self.embedding(ids).flatten(1), counts], dim=1))
        return logits
