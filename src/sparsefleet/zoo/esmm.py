"""ESMM (Ma et al. 2018, arXiv 1804.07931): learns clicks and conversions on all impressions.

In shapes, B is the number of examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sparsefleet.data.features import Features
from sparsefleet.zoo.inputs import FeatureRows, Tables
from sparsefleet.zoo.layers import mlp

__all__ = ["ESMM"]


class ESMM(nn.Module):
    """Two towers over shared rows: p(click), and p(conversion | click).

    The output has two log-odds per example: for a click, and for a click that converts, whose
    probability is p(click) * p(conversion | click). The labels of both are known for every
    impression, so there is no selection bias, as there would be if conversions were learned from
    clicks alone. Labels: click, and click with conversion; the loss is `BCEWithLogitsLoss`.

    >>> from sparsefleet.data.features import Categorical, Features, Label
    >>> features = Features(Categorical("ad"), label=Label("y", columns=("click", "buy")))
    >>> ESMM(features, hidden=(8,))(ad=torch.tensor([7, 8, 9])).shape
    torch.Size([3, 2])
    """

    def __init__(
        self,
        features: Features,
        *,
        hidden: Sequence[int] = (128, 64),
        dropout: float = 0.0,
        tables: Tables | None = None,
    ) -> None:
        super().__init__()
        self.rows = FeatureRows(features, tables)
        width = self.rows.flat_width()
        self.click = mlp(width, hidden, 1, dropout=dropout)
        self.conversion = mlp(width, hidden, 1, dropout=dropout)

    def forward(self, **inputs: Any) -> Tensor:
        """Return the log-odds of a click and of a click with conversion, float32[B, 2]."""
        flat = self.rows.flat(inputs)
        click, conversion = self.click(flat), self.conversion(flat)
        # log p for p = sigmoid(click) * sigmoid(conversion), and from it log(p / (1 - p)).
        log_both = functional.logsigmoid(click) + functional.logsigmoid(conversion)
        log_not = torch.log(-torch.expm1(log_both.clamp(max=-1e-6)))
        return torch.cat([click, log_both - log_not], dim=1)
