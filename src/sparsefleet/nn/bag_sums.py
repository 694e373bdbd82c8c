"""Values of ids, summed by bag.

Letters: B bags, N ids in all.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

SumBags = Callable[[Tensor, int], Tensor]
"""Takes values of all ids and the dimension of the ids: N becomes B, or the dimension goes."""


def bags_of_lengths(lengths: Tensor) -> SumBags:
    """Sums over bags of so many ids each, int64[B], one after another.

    >>> bags_of_lengths(torch.tensor([2, 0, 1]))(torch.tensor([1.0, 2.0, 3.0]), -1)
    tensor([3., 0., 3.])
    """

    def sum_bags(values: Tensor, dim: int) -> Tensor:
        del dim
        # "unsafe" trusts the lengths, which come from offsets that have been checked.
        return torch.segment_reduce(values, "sum", lengths=lengths, unsafe=True, initial=0.0)

    return sum_bags


def traced_bags(ids: Tensor, starts: Tensor) -> SumBags:
    """The same, for bags that begin at ``starts`` (int64[B]), by operators that every graph has.

    Offsets that go beyond the ids fail in ``index_add``; nothing is read out of bounds.

    >>> traced_bags(torch.tensor([7, 8, 9]), torch.tensor([0, 2, 2]))(torch.ones(3), -1)
    tensor([2., 0., 1.])
    """
    num_ids, num_bags = ids.shape[0], starts.shape[0]
    begins = ids.new_zeros(num_ids + 1).index_add(0, starts, torch.ones_like(starts))
    bag_of_id = begins.cumsum(0)[:num_ids] - 1

    def sum_bags(values: Tensor, dim: int) -> Tensor:
        del dim
        return values.new_zeros(num_bags, *values.shape[1:]).index_add(0, bag_of_id, values)

    return sum_bags
