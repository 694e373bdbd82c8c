"""xDeepFM (Lian et al. 2018, arXiv 1803.05170): products of fields of growing order.

In shapes, B is the number of examples, F the number of fields, D the row width, and H the number of
maps in a layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sparsefleet.data.features import Features
from sparsefleet.zoo.inputs import FeatureRows, Tables
from sparsefleet.zoo.layers import mlp, require_counts, require_last_width
from sparsefleet.zoo.wide_deep import LinearTerms

__all__ = ["XDeepFM"]


class CompressedInteractions(nn.Module):
    """The compressed interaction network, whose layer k computes products of k + 1 fields.

    A layer multiplies each map of its input with each field elementwise, and mixes the products of
    each column into H maps. As in the paper's equation 6, there is no activation.

    num_fields: F. maps: the number of maps, H, of each layer.
    """

    def __init__(self, num_fields: int, maps: Sequence[int]) -> None:
        super().__init__()
        widths = [num_fields, *maps]
        self.mixes = nn.ModuleList(
            nn.Linear(num_fields * before, after, bias=False)
            for before, after in zip(widths, maps, strict=False)
        )
        self.width = sum(maps)

    def forward(self, rows: Tensor) -> Tensor:
        """Map rows float32[B, F, D] to float32[B, width], each map summed over its columns."""
        columns = rows.transpose(1, 2)  # [B, D, F]
        state = columns
        pooled = []
        for mix in self.mixes:
            products = state.unsqueeze(3) * columns.unsqueeze(2)  # [B, D, H, F]
            state = mix(products.flatten(2))  # [B, D, next H]
            pooled.append(state.sum(dim=1))
        return torch.cat(pooled, dim=1)


class XDeepFM(nn.Module):
    """The sum of three logits: linear terms, compressed interactions, and deep layers.

    >>> import torch
    >>> from sparsefleet.data.features import Categorical, Features
    >>> features = Features(Categorical("ad"), Categorical("site"))
    >>> model = XDeepFM(features, maps=(8, 8), hidden=(16,))
    >>> model(ad=torch.tensor([7, 8]), site=torch.tensor([1, 1])).shape
    torch.Size([2])
    """

    def __init__(
        self,
        features: Features,
        *,
        maps: Sequence[int] = (64, 64),
        hidden: Sequence[int] = (128, 64),
        dropout: float = 0.0,
        tables: Tables | None = None,
    ) -> None:
        super().__init__()
        require_last_width("XDeepFM", "maps", maps)
        for number in maps:
            require_counts("XDeepFM", maps=number)
        self.linear = LinearTerms(features, tables)
        self.rows = FeatureRows(features, tables)
        self.rows.common_dim()
        self.interactions = CompressedInteractions(self.rows.num_fields(), maps)
        self.of_interactions = nn.Linear(self.interactions.width, 1, bias=False)
        self.deep = mlp(self.rows.flat_width(), hidden, 1, dropout=dropout)

    def forward(self, **inputs: Any) -> Tensor:
        """Return logits, float32[B]."""
        rows = self.rows.fields(inputs)
        crossed: Tensor = self.of_interactions(self.interactions(rows))
        deep: Tensor = self.deep(self.rows.beside_numbers(rows, inputs))
        linear: Tensor = self.linear(inputs)
        return linear + (crossed + deep).squeeze(1)
