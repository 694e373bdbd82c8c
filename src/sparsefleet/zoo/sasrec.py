"""SASRec (Kang and McAuley 2018, arXiv 1808.09781): self-attention over a history.

In shapes, B is the number of examples, L the length of the longest history, D the row width, H the
number of heads, and C the number of candidates.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from sparsefleet.data import features as kinds
from sparsefleet.data.features import Features
from sparsefleet.errors import ConfigError
from sparsefleet.zoo.inputs import FeatureRows, Tables, require_kind, require_like
from sparsefleet.zoo.layers import require_counts

__all__ = ["NextItemLoss", "NextItems", "SASRec"]


class NextItems(NamedTuple):
    """SASRec's result for training data: logits for the item after each item of a history."""

    chosen: Tensor
    """Logits float32[B, L] for the item that came next."""
    refused: Tensor
    """Logits float32[B, L] for a negative."""
    mask: Tensor
    """Which positions hold an item, bool[B, L]."""


class AttentionBlock(nn.Module):
    """Causal self-attention and a layer, each with a residual, layer norm and dropout."""

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_layers = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.projections = nn.Linear(dim, 3 * dim)
        self.layers = nn.Sequential(
            nn.Linear(dim, dim), nn.ReLU(), nn.Dropout(dropout), nn.Linear(dim, dim)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, states: Tensor) -> Tensor:
        """Map states float32[B, L, D] to new states; each position sees itself and earlier ones."""
        size, length, dim = states.shape
        split = self.projections(self.before_attention(states))
        split = split.view(size, length, 3, self.heads, dim // self.heads)
        queries, keys, values = split.permute(2, 0, 3, 1, 4)  # each [B, H, L, D / H]
        scores = queries @ keys.transpose(2, 3) / math.sqrt(dim // self.heads)
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        shares = self.dropout(torch.softmax(scores.masked_fill(later, -math.inf), dim=3))
        mixed = (shares @ values).transpose(1, 2).reshape(size, length, dim)
        states = states + self.dropout(mixed)
        deeper: Tensor = self.layers(self.before_layers(states))
        added: Tensor = self.dropout(deeper)
        return states + added


class SASRec(nn.Module):
    """SASRec: scores the next item after a history.

    history: a Sequence; candidate: a Categorical on its table, with one column or C columns.
    chosen, refused: for training, Sequences with the history's lengths and table that hold the item
        after each item of the history, and a negative. A batch with them returns `NextItems`, for
        `NextItemLoss`; any other returns the logits of the candidates.

    >>> from sparsefleet.data.features import Categorical, Features, Sequence
    >>> features = Features(Categorical("item"), Sequence("seen", table="item", max_length=5))
    >>> model = SASRec(features, history="seen", candidate="item", heads=2)
    >>> seen = (torch.tensor([3, 4, 5]), torch.tensor([0, 2]))
    >>> model(item=torch.tensor([7, 8]), seen=seen).shape
    torch.Size([2])
    """

    def __init__(
        self,
        features: Features,
        *,
        history: str,
        candidate: str,
        chosen: str | None = None,
        refused: str | None = None,
        blocks: int = 2,
        heads: int = 1,
        dropout: float = 0.2,
        tables: Tables | None = None,
    ) -> None:
        super().__init__()
        require_counts("SASRec", heads=heads)
        require_counts("SASRec", least=0, blocks=blocks)
        require_kind(features, "history", history, kinds.Sequence)
        require_kind(features, "candidate", candidate, kinds.Categorical)
        for argument, name in (("chosen", chosen), ("refused", refused)):
            if name is not None:
                require_like(features, argument, name, history)
        if (chosen is None) != (refused is None):
            raise ConfigError(
                f"SASRec trains with both chosen= and refused=, got {chosen!r} and {refused!r}"
            )
        used = [name for name in (history, candidate, chosen, refused) if name is not None]
        self.rows = FeatureRows(Features(*(features[name] for name in used)), tables)
        self.history, self.candidate = history, candidate
        self.chosen, self.refused = chosen, refused
        dim = self.rows.common_dim([history, candidate])
        if dim % heads:
            raise ConfigError(
                f"SASRec: dim must be a multiple of heads, got dim {dim} and {heads} heads"
            )
        sequence = features[history]
        assert isinstance(sequence, kinds.Sequence), sequence
        self.places = nn.Parameter(torch.randn(sequence.max_length, dim) * 0.01)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(AttentionBlock(dim, heads, dropout) for _ in range(blocks)))
        self.last_norm = nn.LayerNorm(dim)
        self.scale = math.sqrt(dim)

    def forward(self, **inputs: Any) -> Tensor | NextItems:
        """Return logits for the candidates, float32[B] or [B, C], or `NextItems`."""
        rows, mask = self.rows.sequence(self.history, inputs)
        placed = self.dropout(rows * self.scale + self.places)
        states: Tensor = self.last_norm(self.blocks(placed * mask.unsqueeze(2)))
        if self.chosen is not None and self.refused is not None and self.chosen in inputs:
            logits = [
                (states * self.rows.sequence_like(name, inputs, mask)).sum(dim=2)
                for name in (self.chosen, self.refused)
            ]
            return NextItems(logits[0], logits[1], mask)
        last = (mask.sum(dim=1) - 1).clamp(min=0).view(-1, 1, 1).expand(-1, 1, states.shape[2])
        state = states.gather(1, last).squeeze(1) * mask[:, :1]
        candidates = self.rows.one(self.candidate, inputs)
        if candidates.dim() == 2:
            return (candidates * state).sum(dim=1)
        return (candidates @ state.unsqueeze(2)).squeeze(2)


class NextItemLoss:
    """Binary cross entropy over chosen and refused items, or over candidates with labels."""

    def __call__(self, output: Tensor | NextItems, labels: Tensor) -> Tensor:
        if not isinstance(output, NextItems):
            return functional.binary_cross_entropy_with_logits(output, labels)
        losses = functional.softplus(-output.chosen) + functional.softplus(output.refused)
        counted = output.mask.to(losses.dtype)
        return (losses * counted).sum() / counted.sum().clamp(min=1)

    def predictions(self, output: Tensor | NextItems) -> Tensor:
        """Return probabilities for the candidates, or for the chosen items."""
        return torch.sigmoid(output.chosen if isinstance(output, NextItems) else output)
