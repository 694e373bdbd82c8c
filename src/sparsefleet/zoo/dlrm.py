"""DLRM (Naumov et al. 2019, arXiv 1906.00091): dot products of fields, with numbers as a field.

In shapes, B is the number of examples, F the number of fields, D the row width, and M the number of
numeric inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sparsefleet.data.features import Features
from sparsefleet.errors import ConfigError
from sparsefleet.nn.pair_products import PairProducts
from sparsefleet.zoo.inputs import FeatureRows, Tables
from sparsefleet.zoo.layers import mlp

__all__ = ["DLRM"]


class DLRM(nn.Module):
    """DLRM: bottom layers turn the numbers into a vector; top layers use it and the dot products.

    bottom: widths of the bottom layers; a last layer with the fields' dim is added.
    top: widths of the top layers.

    >>> from sparsefleet.data.features import Categorical, Features, Numeric
    >>> features = Features(Numeric("age"), Categorical("ad"), Categorical("site"))
    >>> model = DLRM(features, bottom=(16,), top=(16,))
    >>> model(age=torch.ones(2), ad=torch.tensor([7, 8]), site=torch.tensor([1, 1])).shape
    torch.Size([2])
    """

    def __init__(
        self,
        features: Features,
        *,
        bottom: Sequence[int] = (512, 256),
        top: Sequence[int] = (512, 256),
        tables: Tables | None = None,
    ) -> None:
        super().__init__()
        self.rows = FeatureRows(features, tables)
        dim = self.rows.common_dim()
        if not self.rows.num_numbers:
            raise ConfigError("DLRM needs at least one Numeric feature, found none")
        self.bottom = mlp(self.rows.num_numbers, (*bottom, dim))
        num_vectors = self.rows.num_fields() + 1
        self.products = PairProducts(num_vectors, lower=True)
        self.top = mlp(dim + num_vectors * (num_vectors - 1) // 2, top, 1)

    def forward(self, **inputs: Any) -> Tensor:
        """Return logits, float32[B]."""
        dense: Tensor = self.bottom(self.rows.numbers(inputs))
        vectors = torch.cat([dense.unsqueeze(1), self.rows.fields(inputs)], dim=1)
        logits: Tensor = self.top(torch.cat([dense, self.products(vectors)], dim=1))
        return logits.squeeze(1)
