"""DeepFM (Guo et al. 2017, arXiv 1703.04247): a factorization machine and a deep model.

In shapes, B is the number of examples, F the number of fields, D the row width, and M the number of
numeric inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from sparsefleet.data.features import Features
from sparsefleet.zoo.inputs import FeatureRows, Tables
from sparsefleet.zoo.layers import mlp
from sparsefleet.zoo.wide_deep import LinearTerms

__all__ = ["DeepFM"]


def pair_products(rows: Tensor) -> Tensor:
    """Return the sum of the dot products of all pairs of fields: float32[B, F, D] -> float32[B].

    >>> import torch
    >>> pair_products(torch.tensor([[[1.0], [2.0], [3.0]]]))  # 1 * 2 + 1 * 3 + 2 * 3
    tensor([11.])
    """
    # The square of the sum contains each pair twice, and the squares once.
    return (rows.sum(dim=1).square() - rows.square().sum(dim=1)).sum(dim=1) / 2


class DeepFM(nn.Module):
    """The sum of three logits: linear terms, products of pairs of fields, and deep layers.

    All id features need the same dim. The linear terms and the vectors are in two tables with the
    same ids; a batch still costs only one request per server.

    >>> import torch
    >>> from sparsefleet.data.features import Categorical, Features, Numeric
    >>> features = Features(Numeric("age"), Categorical("ad"), Categorical("site"))
    >>> model = DeepFM(features, hidden=(16,))
    >>> model(age=torch.ones(2), ad=torch.tensor([7, 8]), site=torch.tensor([1, 1])).shape
    torch.Size([2])
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
        self.linear = LinearTerms(features, tables)
        self.rows = FeatureRows(features, tables)
        self.rows.common_dim()
        self.deep = mlp(self.rows.flat_width(), hidden, 1, dropout=dropout)

    def forward(self, **inputs: Any) -> Tensor:
        """Return logits, float32[B]."""
        rows = self.rows.fields(inputs)
        deep: Tensor = self.deep(self.rows.beside_numbers(rows, inputs))
        linear: Tensor = self.linear(inputs)
        return linear + pair_products(rows) + deep.squeeze(1)
