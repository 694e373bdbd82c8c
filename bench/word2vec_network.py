"""Skip-gram with negative sampling in plain torch, and its products alone, without sparsefleet.

Letters: B pairs, K noise words, D row width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from word2vec_pairs import DIM, NUM_NOISE, NUM_WORDS

SIGNS = torch.tensor([-1.0] + [1.0] * NUM_NOISE)
"""The targets of the logits: high for the true word, low for noise."""


class Products:
    """The products of one step and nothing else: no rows are fetched or changed.

    Each uses the form that is fastest in torch: a row times a matrix, or elementwise.
    """

    def __init__(self, batch_size: int) -> None:
        self.words = torch.randn(batch_size, 1, DIM)
        self.contexts = torch.randn(batch_size, 1 + NUM_NOISE, DIM)
        self.logits = torch.randn(batch_size, 1, 1 + NUM_NOISE)
        self.word_gradients = torch.empty_like(self.words)
        self.context_gradients = torch.empty_like(self.contexts)

    def step(self) -> None:
        torch.bmm(self.words, self.contexts.mT, out=self.logits)
        torch.bmm(self.logits, self.contexts, out=self.word_gradients)
        torch.mul(self.logits.mT, self.words, out=self.context_gradients)


def skip_gram_logits(words: Tensor, contexts: Tensor, biases: Tensor) -> Tensor:
    """words: float32[B, D], contexts: [B, 1 + K, D], biases: [B, 1 + K, 1] -> [B, 1 + K]."""
    # Elementwise: batched matrix products of this shape take three times as long.
    return (contexts * words.unsqueeze(1)).sum(2) + biases.squeeze(2)


def loss_of_logits(logits: Tensor) -> Tensor:
    """logits: float32[B, 1 + K], the true word's first -> the mean over B."""
    return nn.functional.softplus(logits * SIGNS).sum() / len(logits)


class PlainModel(nn.Module):
    """The model as a user writes it without sparsefleet."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(NUM_WORDS + 1, DIM, sparse=True)
        self.contexts = nn.Embedding(NUM_WORDS + 1, DIM, sparse=True)
        self.biases = nn.Embedding(NUM_WORDS + 1, 1, sparse=True)
        nn.init.uniform_(self.words.weight, -0.5 / DIM, 0.5 / DIM)
        nn.init.zeros_(self.contexts.weight)
        nn.init.zeros_(self.biases.weight)

    def forward(self, words: Tensor, contexts: Tensor) -> Tensor:
        rows = self.words(words), self.contexts(contexts), self.biases(contexts)
        return loss_of_logits(skip_gram_logits(*rows))
