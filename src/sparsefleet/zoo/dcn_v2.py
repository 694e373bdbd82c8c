"""DCN-V2 (Wang et al. 2021, arXiv 2008.13535): explicit crosses of all inputs, and deep layers.

In shapes, B is the number of examples, I the width of the input, and R the rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sparsefleet.data.features import Features
from sparsefleet.zoo.inputs import FeatureRows, Tables
from sparsefleet.zoo.layers import mlp, require_counts

__all__ = ["CrossLayers", "DCNv2"]


class CrossLayers(nn.Module):
    """Cross layers, x0 * (W x + b) + x; l layers produce products of up to l + 1 inputs.

    width: I.
    layers: the number of layers.
    rank: R; W is the product of an I x R and an R x I matrix. If None, W is a full matrix.

    >>> CrossLayers(6, layers=2)(torch.ones(3, 6)).shape
    torch.Size([3, 6])
    """

    def __init__(self, width: int, *, layers: int, rank: int | None = None) -> None:
        super().__init__()
        require_counts("CrossLayers", least=0, layers=layers)
        if rank is not None:
            require_counts("CrossLayers", rank=rank)
        self.layers = nn.ModuleList(
            nn.Linear(width, width)
            if rank is None
            else nn.Sequential(nn.Linear(width, rank, bias=False), nn.Linear(rank, width))
            for _ in range(layers)
        )

    def forward(self, first: Tensor) -> Tensor:
        """Map the first layer's input, float32[B, I], to its crosses, float32[B, I]."""
        state = first
        for layer in self.layers:
            state = first * layer(state) + state
        return state


class DCNv2(nn.Module):
    """Cross layers and deep layers side by side ("parallel"), or in sequence ("stacked").

    >>> import torch
    >>> from sparsefleet.data.features import Categorical, Features
    >>> model = DCNv2(Features(Categorical("ad")), cross_layers=2, hidden=(16,))
    >>> model(ad=torch.tensor([7, 8])).shape
    torch.Size([2])
    """

    def __init__(
        self,
        features: Features,
        *,
        cross_layers: int = 3,
        rank: int | None = None,
        hidden: Sequence[int] = (128, 64),
        stacked: bool = False,
        dropout: float = 0.0,
        tables: Tables | None = None,
    ) -> None:
        super().__init__()
        self.rows = FeatureRows(features, tables)
        width = self.rows.flat_width()
        self.stacked = stacked
        self.cross = CrossLayers(width, layers=cross_layers, rank=rank)
        self.deep = mlp(width, hidden, dropout=dropout)
        deep_width = hidden[-1] if hidden else width
        self.head = nn.Linear(deep_width if stacked else width + deep_width, 1)

    def forward(self, **inputs: Any) -> Tensor:
        """Return logits, float32[B]."""
        flat = self.rows.flat(inputs)
        crossed = self.cross(flat)
        if self.stacked:
            logits: Tensor = self.head(self.deep(crossed))
        else:
            logits = self.head(torch.cat([crossed, self.deep(flat)], dim=1))
        return logits.squeeze(1)
