"""Skip-gram with negative sampling (Mikolov et al. 2013) as a torch module.

In shapes, B is the number of words in a batch, K the number of noise words, and D the row width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from sparsefleet.nn import SparseEmbedding, embedding_dots
from sparsefleet.store import Constant, Uniform
from sparsefleet.store.optimizers import Optimizer

__all__ = ["SkipGram"]


class SkipGram(nn.Module):
    """Distinguishes a word's neighbor from noise. Returns its own loss, so a `Trainer` needs none.

    The tables are "words", "contexts" and, with ``biases``, "biases". For training on text, use
    `sparsefleet.embed.SkipGram`, which also reads, samples and is faster; this module is for loops
    and modes of your own.

    optimizer: updates all rows; None uses the trainer's optimizer.
    biases: whether each context also has a bias.

    >>> model = SkipGram(8)
    >>> round(model(torch.tensor([3, 4]), torch.tensor([[4, 7], [3, 9]])).item(), 4)
    1.3863
    """

    def __init__(
        self, dim: int, *, optimizer: Optimizer | None = None, biases: bool = False
    ) -> None:
        super().__init__()
        spread, zero = Uniform(-0.5 / dim, 0.5 / dim), Constant(0.0)
        self.words = SparseEmbedding("words", dim, optimizer=optimizer, initializer=spread)
        self.contexts = SparseEmbedding("contexts", dim, optimizer=optimizer, initializer=zero)
        self.biases = (
            SparseEmbedding("biases", 1, optimizer=optimizer, initializer=zero) if biases else None
        )

    def logits(self, words: Tensor, contexts: Tensor) -> Tensor:
        """Map words int64[B] and contexts int64[B, 1 + K] to float32[B, 1 + K]."""
        products = embedding_dots(self.words, words, self.contexts, contexts)
        return products if self.biases is None else products + self.biases(contexts).squeeze(2)

    def forward(self, words: Tensor, contexts: Tensor) -> Tensor:
        """words: int64[B], contexts: int64[B, 1 + K], the neighbor first -> the mean loss."""
        logits = self.logits(words, contexts)
        signs = torch.ones(logits.shape[1])
        signs[0] = -1.0
        return functional.softplus(logits * signs).sum() / len(logits)
