"""DIEN (Zhou et al. 2019, arXiv 1809.03672): models how an interest evolves along a history.

In shapes, B is the number of examples, L the length of the longest history, and D the row width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from sparsefleet.data import features as kinds
from sparsefleet.data.features import Features
from sparsefleet.zoo.inputs import FeatureRows, Tables, require_kind, require_like, require_one_id
from sparsefleet.zoo.layers import mlp

__all__ = ["DIEN", "DienLoss", "DienOutput"]


class DienOutput(NamedTuple):
    """The output of DIEN when it trains with negatives."""

    logits: Tensor
    """The logits, float32[B]."""
    auxiliary: Tensor
    """A scalar: the loss of predicting the next item of the history from the states."""


class AttentionalGru(nn.Module):
    """A GRU whose update gate is scaled by a weight per step (AUGRU)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.of_input = nn.Linear(dim, 3 * dim)
        self.of_state = nn.Linear(dim, 3 * dim)

    def forward(self, steps: Tensor, weights: Tensor, mask: Tensor) -> Tensor:
        """Map steps float32[B, L, D] and weights float32[B, L] to the last state, float32[B, D]."""
        inputs = self.of_input(steps)
        state = torch.zeros_like(steps[:, 0])
        for step in range(steps.shape[1]):
            update, reset, new = inputs[:, step].chunk(3, dim=1)
            of_update, of_reset, of_new = self.of_state(state).chunk(3, dim=1)
            update = torch.sigmoid(update + of_update) * weights[:, step : step + 1]
            candidate = torch.tanh(new + torch.sigmoid(reset + of_reset) * of_new)
            moved = (1 - update) * state + update * candidate
            state = torch.where(mask[:, step : step + 1], moved, state)
        return state


class DIEN(nn.Module):
    """DIEN: one GRU extracts interests from the history, and a second one tracks the interests that
    match the candidate.

    history, candidate: a Sequence and a Categorical with the same dim; they usually share a table.
    negatives: a Sequence with the history's lengths and, for each item, an item that the user did
        not choose; in training, the output is then a `DienOutput`, for `DienLoss`.

    >>> from sparsefleet.data.features import Categorical, Features, Sequence
    >>> features = Features(Categorical("item"), Sequence("seen", table="item", max_length=5))
    >>> model = DIEN(features, history="seen", candidate="item", hidden=(16,))
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
        negatives: str | None = None,
        hidden: Sequence[int] = (128, 64),
        tables: Tables | None = None,
    ) -> None:
        super().__init__()
        require_kind(features, "history", history, kinds.Sequence)
        require_one_id(features, "candidate", candidate)
        if negatives is not None:
            require_like(features, "negatives", negatives, history)
        self.rows = FeatureRows(features, tables)
        self.history, self.candidate, self.negatives = history, candidate, negatives
        sequences = [history] if negatives is None else [history, negatives]
        self.others = [feature.name for feature in features.without(*sequences)]
        dim = self.rows.common_dim([*sequences, candidate])
        self.extract = nn.GRU(dim, dim, batch_first=True)
        self.attend = nn.Linear(dim, dim, bias=False)
        self.evolve = AttentionalGru(dim)
        self.layers = mlp(dim + self.rows.flat_width(self.others), hidden, 1)

    def forward(self, **inputs: Any) -> Tensor | DienOutput:
        """Return logits, float32[B], or a `DienOutput`."""
        rows, mask = self.rows.sequence(self.history, inputs)
        states, _ = self.extract(rows)
        candidate = self.rows.one(self.candidate, inputs)
        scores = (self.attend(states) * candidate.unsqueeze(1)).sum(dim=2)
        # Large but not infinite, since an empty history must not divide 0 by 0.
        weights = torch.softmax(scores.masked_fill(~mask, -1e9), dim=1)
        interest = self.evolve(states, weights, mask)
        flat = self.rows.flat(inputs, self.others)
        logits: Tensor = self.layers(torch.cat([interest, flat], dim=1)).squeeze(1)
        if self.negatives is None or not self.training:
            return logits
        other = self.rows.sequence_like(self.negatives, inputs, mask)
        return DienOutput(logits, self._auxiliary(states, rows, other, mask))

    def _auxiliary(self, states: Tensor, rows: Tensor, other: Tensor, mask: Tensor) -> Tensor:
        """Return the mean loss of telling the next item from a negative, given each state."""
        chosen = (states[:, :-1] * rows[:, 1:]).sum(dim=2)
        refused = (states[:, :-1] * other[:, 1:]).sum(dim=2)
        losses = functional.softplus(-chosen) + functional.softplus(refused)
        counted = mask[:, 1:].to(losses.dtype)
        return (losses * counted).sum() / counted.sum().clamp(min=1)


class DienLoss:
    """Binary cross entropy, plus the auxiliary loss if the output has one.

    weight: the weight of the auxiliary loss.
    """

    def __init__(self, weight: float = 0.5) -> None:
        self.weight = weight

    def __call__(self, output: Tensor | DienOutput, labels: Tensor) -> Tensor:
        if not isinstance(output, DienOutput):
            return functional.binary_cross_entropy_with_logits(output, labels)
        loss = functional.binary_cross_entropy_with_logits(output.logits, labels)
        return loss + self.weight * output.auxiliary

    def predictions(self, output: Tensor | DienOutput) -> Tensor:
        """Return probabilities, float32[B]."""
        return torch.sigmoid(output.logits if isinstance(output, DienOutput) else output)
