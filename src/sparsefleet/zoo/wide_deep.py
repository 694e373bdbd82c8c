"""Wide & Deep (Cheng et al. 2016, arXiv 1606.07792): a linear and a deep model.

In shapes, B is the number of examples, F the number of fields, D the row width, and M the number of
numeric inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sparsefleet.data.features import Features
from sparsefleet.store import Constant
from sparsefleet.zoo.inputs import FeatureRows, Tables
from sparsefleet.zoo.layers import mlp

__all__ = ["LinearTerms", "WideDeep"]


class LinearTerms(nn.Module):
    """A weight for each id, one for each number, and a bias; weights of ids start at 0.

    features: the features that have weights.
    tables: settings for the tables, which have the features' table names with ".linear" appended.
    """

    def __init__(self, features: Features, tables: Tables | None = None) -> None:
        super().__init__()
        self.weights = FeatureRows(
            features, tables, suffix=".linear", dim=1, initializer=Constant(0.0)
        )
        self.bias = nn.Parameter(torch.zeros(1))
        numbers = self.weights.num_numbers
        self.of_numbers = nn.Linear(numbers, 1, bias=False) if numbers else None

    def forward(self, inputs: Any) -> Tensor:
        """Return the sum of all terms, float32[B]."""
        total: Tensor = self.bias
        if self.weights.num_fields():
            total = self.weights.fields(inputs).sum(dim=(1, 2)) + total
        if self.of_numbers is None:
            return total
        of_numbers: Tensor = self.of_numbers(self.weights.numbers(inputs))
        return total + of_numbers.squeeze(1)


class WideDeep(nn.Module):
    """The sum of two logits: linear terms of the wide features, and layers on the deep ones.

    wide: names of the features with linear terms; None means all.

    >>> import torch
    >>> from sparsefleet.data.features import Categorical, Features
    >>> model = WideDeep(Features(Categorical("ad"), Categorical("site")), wide=["ad"])
    >>> model(ad=torch.tensor([7, 8]), site=torch.tensor([1, 1])).shape
    torch.Size([2])
    """

    def __init__(
        self,
        features: Features,
        *,
        wide: Sequence[str] | None = None,
        hidden: Sequence[int] = (100, 50),
        dropout: float = 0.0,
        tables: Tables | None = None,
    ) -> None:
        super().__init__()
        self.wide = LinearTerms(features if wide is None else features.only(*wide), tables)
        self.rows = FeatureRows(features, tables)
        self.deep = mlp(self.rows.flat_width(), hidden, 1, dropout=dropout)

    def forward(self, **inputs: Any) -> Tensor:
        """Return logits, float32[B]."""
        deep: Tensor = self.deep(self.rows.flat(inputs))
        wide: Tensor = self.wide(inputs)
        return wide + deep.squeeze(1)
