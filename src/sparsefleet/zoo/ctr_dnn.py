"""CTR-DNN: rows of all fields and the numbers pass through a few layers to the logits.

In shapes, B is the number of examples, F the number of fields, D the row width, M the number of
numeric inputs, and C the number of logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from sparsefleet.data.features import Features
from sparsefleet.zoo.inputs import FeatureRows, Tables
from sparsefleet.zoo.layers import mlp, require_counts

__all__ = ["CtrDnn"]


class CtrDnn(nn.Module):
    """A plain deep model for click prediction; PaddleRec has the same model under the name `dnn`.

    num_logits: 1 for a binary cross-entropy on the logits. PaddleRec's `dnn` has 2, for a
        cross-entropy over the classes "no click" and "click".

    >>> import torch
    >>> from sparsefleet.data.features import Categorical, Features
    >>> model = CtrDnn(Features(Categorical("ad")), hidden=(16,))
    >>> model(ad=torch.tensor([7, 8])).shape
    torch.Size([2])
    """

    def __init__(
        self,
        features: Features,
        *,
        hidden: Sequence[int] = (400, 400, 400),
        num_logits: int = 1,
        dropout: float = 0.0,
        tables: Tables | None = None,
    ) -> None:
        super().__init__()
        require_counts("CtrDnn", num_logits=num_logits)
        self.rows = FeatureRows(features, tables)
        self.layers = mlp(self.rows.flat_width(), hidden, num_logits, dropout=dropout)

    def forward(self, **inputs: Any) -> Tensor:
        """Return logits, float32[B], or float32[B, C] for several per example."""
        logits: Tensor = self.layers(self.rows.flat(inputs))
        return logits.squeeze(1)  # leaves float32[B, C] as it is
