"""Pools or pads the rows of ragged ids; both can be recorded as a graph.

In shapes, B is the number of examples, N the number of ids in all examples, L the length of the
longest kept sequence, and D the row width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from sparsefleet.nn.sparse_embedding_bag import BagsOfLengths, traced_bags
from sparsefleet.nn.step_rows import is_traced

__all__ = ["Padded", "pad", "pool"]


class Padded(NamedTuple):
    """Sequences of equal length, oldest first, followed by zeros."""

    rows: Tensor
    """The padded rows, float32[B, L, D]."""
    mask: Tensor
    """bool[B, L], False for the zeros after the end."""


def pad(rows: Tensor, offsets: Tensor, length: int) -> Padded:
    """Return the last `length` rows of each example, padded.

    rows: float32[N, D], offsets: int64[B], where each example starts.

    >>> pad(torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([0, 1]), 2).rows.squeeze(2)
    tensor([[1., 0.],
            [2., 3.]])
    """
    ends = torch.cat([offsets[1:], offsets.new_full((1,), rows.shape[0])])
    kept = (ends - offsets).clamp(max=length)
    place = torch.arange(length)
    mask = place < kept.unsqueeze(1)
    index = torch.where(mask, (ends - kept).unsqueeze(1) + place, rows.shape[0])
    zero = rows.new_zeros(1, rows.shape[1])
    return Padded(functional.embedding(index, torch.cat([rows, zero])), mask)


def pool(rows: Tensor, offsets: Tensor, length: int, pooling: str) -> Tensor:
    """Pool the last `length` rows of each example into one row: float32[B, D].

    The result is zeros for an example without rows.

    pooling: "sum", "mean" or "sqrtn" (the sum divided by the square root of the count).

    >>> pool(torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([0, 1, 1]), 5, "mean").squeeze(1)
    tensor([1., 0., 3.])
    """
    ends = torch.cat([offsets[1:], offsets.new_full((1,), rows.shape[0])])
    lengths = ends - offsets
    if is_traced():
        bag_end = _end_of_each(rows.shape[0], offsets, ends)
        kept = bag_end - torch.arange(rows.shape[0]) <= length
        total = traced_bags(bag_end, offsets)(rows * kept.unsqueeze(1), 0)
    else:
        if lengths.numel() and int(lengths.max()) > length:
            bag_end = ends.repeat_interleave(lengths)
            kept = bag_end - torch.arange(rows.shape[0]) <= length
            rows = rows * kept.unsqueeze(1)
        total = BagsOfLengths(lengths)(rows, 0)
    if pooling == "sum":
        return total
    divisor = lengths.clamp(min=1, max=length).to(rows.dtype).unsqueeze(1)
    return total / (divisor.sqrt() if pooling == "sqrtn" else divisor)


def _end_of_each(num_ids: int, starts: Tensor, ends: Tensor) -> Tensor:
    """Return the end of the example of each id, int64[N], using traceable operators."""
    begins = starts.new_zeros(num_ids + 1).index_add(0, starts, torch.ones_like(starts))
    example = begins.cumsum(0)[:num_ids] - 1
    return ends[example]
