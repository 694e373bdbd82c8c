"""CTR-DNN in plain torch, its layers alone and its products alone; without sparsefleet."""

from __future__ import annotations

import itertools
import timeit
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn

from ctr_batches import DIM, NUM_COUNTS, NUM_IDS, NUM_SLOTS, WIDTHS

LR = 0.1


class Products:
    """The matrix products of one step and nothing else, by whichever library is faster here: no
    training can be faster.
    """

    def __init__(self, batch_size: int) -> None:
        pairs = list(itertools.pairwise(WIDTHS))
        self.weights = [torch.randn(wide, narrow).T.contiguous() * 0.05 for wide, narrow in pairs]
        self.weight_gradients = [torch.empty_like(weight) for weight in self.weights]
        self.values = [torch.randn(batch_size, width) for width in WIDTHS]
        self.value_gradients = [torch.randn(batch_size, width) for width in WIDTHS]
        self._products = [min(ways, key=_fastest_s) for ways in self._ways()]

    def step(self) -> None:
        for product in self._products:
            product()

    def _ways(self) -> Iterator[tuple[Callable[[], Tensor], ...]]:
        """Yield each product of the step as torch and as oneDNN compute it."""
        values, gradients = self.values, self.value_gradients
        for x, weight, y in zip(values, self.weights, values[1:], strict=False):
            yield partial(torch.mm, x, weight.T, out=y), _by_onednn(x, weight)
        for i in reversed(range(len(self.weights))):
            x, weight, y = values[i], self.weights[i], gradients[i + 1]
            yield (
                partial(torch.mm, y.T, x, out=self.weight_gradients[i]),
                _by_onednn(y.T, x.T),
            )
            yield partial(torch.mm, y, weight, out=gradients[i]), _by_onednn(y, weight.T)


def _by_onednn(x: Tensor, weight: Tensor) -> Callable[[], Tensor]:
    return partial(torch.ops.mkldnn._linear_pointwise, x, weight, None, "none", [], "")


def _fastest_s(product: Callable[[], Tensor]) -> float:
    return min(timeit.repeat(product, number=1, repeat=20))


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


def layers(num_inputs: int = WIDTHS[0]) -> nn.Sequential:
    """Three layers of 400 with ReLU, and two logits."""
    made: list[nn.Module] = []
    for wide, narrow in itertools.pairwise((num_inputs, *WIDTHS[1:])):
        made += [nn.Linear(wide, narrow), nn.ReLU()]
    return nn.Sequential(*made[:-1])


class PlainModel(nn.Module):
    """The model as a user writes it without sparsefleet."""

    def __init__(self, num_counts: int = NUM_COUNTS, num_slots: int = NUM_SLOTS) -> None:
        super().__init__()
        self.embedding = nn.Embedding(NUM_IDS, DIM, sparse=True)
        nn.init.uniform_(self.embedding.weight, -0.05, 0.05)
        self.layers = layers(num_counts + num_slots * DIM)

    def forward(self, counts: Tensor, ids: Tensor) -> Tensor:
        logits: Tensor = self.layers(torch.cat([self.embedding(ids).flatten(1), counts], dim=1))
        return logits
