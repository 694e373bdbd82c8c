"""AutoInt (Song et al. 2019, arXiv 1810.11921): self-attention between fields.

In shapes, B is the number of examples, F the number of fields, D the row width, A the width of a
head, and H the number of heads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sparsefleet.data.features import Features
from sparsefleet.zoo.inputs import FeatureRows, Tables
from sparsefleet.zoo.layers import mlp, require_counts

__all__ = ["AutoInt"]


class FieldAttention(nn.Module):
    """Multi-head attention between fields, with a projection of each field added as a residual.

    dim: width of a field.
    heads, head_dim: H and A; the result has the width H * A.
    """

    def __init__(self, dim: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, head_dim
        self.projections = nn.Linear(dim, 3 * heads * head_dim, bias=False)
        self.residual = nn.Linear(dim, heads * head_dim, bias=False)

    def forward(self, fields: Tensor) -> Tensor:
        """Map fields float32[B, F, D] to float32[B, F, H * A]."""
        size, num_fields, _ = fields.shape
        split = self.projections(fields).view(size, num_fields, 3, self.heads, self.head_dim)
        queries, keys, values = split.permute(2, 0, 3, 1, 4)  # each [B, H, F, A]
        scores = queries @ keys.transpose(2, 3) / math.sqrt(self.head_dim)
        mixed = torch.softmax(scores, dim=3) @ values
        side_by_side = mixed.transpose(1, 2).reshape(size, num_fields, -1)
        return torch.relu(side_by_side + self.residual(fields))


class AutoInt(nn.Module):
    """Attention layers over all fields; each number scales a learned vector, which is its field.

    hidden: widths of deep layers next to the attention; () means none, as in the paper's first
        model.

    >>> import torch
    >>> from sparsefleet.data.features import Categorical, Features, Numeric
    >>> model = AutoInt(Features(Numeric("age"), Categorical("ad")), heads=2, head_dim=4)
    >>> model(age=torch.ones(2), ad=torch.tensor([7, 8])).shape
    torch.Size([2])
    """

    def __init__(
        self,
        features: Features,
        *,
        layers: int = 3,
        heads: int = 2,
        head_dim: int = 16,
        hidden: Sequence[int] = (),
        tables: Tables | None = None,
    ) -> None:
        super().__init__()
        require_counts("AutoInt", least=0, layers=layers)
        require_counts("AutoInt", heads=heads, head_dim=head_dim)
        self.rows = FeatureRows(features, tables)
        dim = self.rows.common_dim()
        numbers = self.rows.num_numbers
        self.of_numbers = nn.Parameter(torch.randn(numbers, dim) * 0.01) if numbers else None
        widths = [dim, *[heads * head_dim] * layers]
        self.attention = nn.Sequential(
            *(FieldAttention(width, heads, head_dim) for width in widths[:-1])
        )
        self.head = nn.Linear((self.rows.num_fields() + numbers) * widths[-1], 1)
        self.deep = mlp(self.rows.flat_width(), hidden, 1) if hidden else None

    def forward(self, **inputs: Any) -> Tensor:
        """Return logits, float32[B]."""
        rows = fields = self.rows.fields(inputs)
        if self.of_numbers is not None:
            numbers = self.rows.numbers(inputs).unsqueeze(2) * self.of_numbers
            fields = torch.cat([rows, numbers], dim=1)
        logits: Tensor = self.head(self.attention(fields).flatten(1))
        if self.deep is not None:
            logits = logits + self.deep(self.rows.beside_numbers(rows, inputs))
        return logits.squeeze(1)
