"""DIN (Zhou et al. 2018, arXiv 1706.06978): weights a history by its relevance to a candidate.

In shapes, B is the number of examples, L the length of the longest history, and D the row width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sparsefleet.data import features as kinds
from sparsefleet.data.features import Features
from sparsefleet.zoo.inputs import FeatureRows, Tables, require_kind, require_one_id
from sparsefleet.zoo.layers import mlp
from sparsefleet.zoo.ragged import Padded

__all__ = ["DIN", "RelevanceUnit"]


class RelevanceUnit(nn.Module):
    """Scores each history item against a candidate, given both and their difference and product.

    dim: D.
    hidden: widths of its layers.
    """

    def __init__(self, dim: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.layers = mlp(4 * dim, hidden, 1)

    def forward(self, history: Padded, candidate: Tensor) -> Tensor:
        """Map candidates float32[B, D] to scores float32[B, L], 0 after the end of a history."""
        rows, mask = history
        one = candidate.unsqueeze(1).expand_as(rows)
        scores: Tensor = self.layers(torch.cat([rows, one, rows - one, rows * one], dim=2))
        return scores.squeeze(2) * mask


class DIN(nn.Module):
    """DIN: layers over the history's rows, weighted by relevance, the candidate and other features.

    history, candidate: a Sequence and a Categorical with the same dim; they usually share a table.
    Relevance is not normalized, so its sum indicates how strong the interest is.

    >>> from sparsefleet.data.features import Categorical, Features, Sequence
    >>> features = Features(Categorical("item"), Sequence("seen", table="item"))
    >>> model = DIN(features, history="seen", candidate="item", hidden=(16,))
    >>> seen = (torch.tensor([3, 4, 5]), torch.tensor([0, 2]))  # 3, 4 and 5
    >>> model(item=torch.tensor([7, 8]), seen=seen).shape
    torch.Size([2])
    """

    def __init__(
        self,
        features: Features,
        *,
        history: str,
        candidate: str,
        relevance: Sequence[int] = (64, 16),
        hidden: Sequence[int] = (128, 64),
        dropout: float = 0.0,
        tables: Tables | None = None,
    ) -> None:
        super().__init__()
        require_kind(features, "history", history, kinds.Sequence)
        require_one_id(features, "candidate", candidate)
        self.rows = FeatureRows(features, tables)
        self.history, self.candidate = history, candidate
        self.others = [feature.name for feature in features.without(history)]
        dim = self.rows.common_dim([history, candidate])
        self.relevance = RelevanceUnit(dim, relevance)
        self.layers = mlp(dim + self.rows.flat_width(self.others), hidden, 1, dropout=dropout)

    def forward(self, **inputs: Any) -> Tensor:
        """Return logits, float32[B]."""
        history = self.rows.sequence(self.history, inputs)
        scores = self.relevance(history, self.rows.one(self.candidate, inputs))
        interest = (scores.unsqueeze(1) @ history.rows).squeeze(1)
        flat = self.rows.flat(inputs, self.others)
        logits: Tensor = self.layers(torch.cat([interest, flat], dim=1))
        return logits.squeeze(1)
