"""Sums the rows of bags of ids, computed on the distinct rows of a batch.

In shapes, B is the number of bags, N the number of ids in all bags, D the row width, and U the
number of distinct rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch._compile import _disable_dynamo

from sparsefleet import _core
from sparsefleet.errors import ConfigError
from sparsefleet.nn.pulled_rows import DistinctRows, graph_input
from sparsefleet.nn.sparse_module import SparseModule
from sparsefleet.store.arrays import Floats

__all__ = ["Bags", "sum_rows_by_bag"]


Lengths = NDArray[np.int64]


class Bags(NamedTuple):
    """The bags of one feature."""

    module: SparseModule
    ids: Tensor
    """int64[N], on the CPU."""
    lengths: Lengths
    """int64[B], the number of ids in each bag; validated: none is negative, and their sum is N."""


def sum_rows_by_bag(features: Sequence[Bags]) -> Tensor:
    """Return the sums of the rows of all bags, features concatenated: float32[B, sum of D].

    Neither rows nor gradients are copied per id. Padding adds nothing. There is no second
    derivative.

    >>> from sparsefleet.nn import SparseEmbedding
    >>> from sparsefleet.store import Constant
    >>> ads = SparseEmbedding("ads", 2, initializer=Constant(1.0)).eval()
    >>> ads.unknown = "initial"
    >>> sum_rows_by_bag([Bags(ads, torch.tensor([5, 6, 5]), np.array([2, 1]))])
    tensor([[2., 2.],
            [1., 1.]])
    """
    if torch.compiler.is_dynamo_compiling():
        return _sum_outside_graph(features)
    return _sum_eagerly(features)


def _sum_eagerly(features: Sequence[Bags]) -> Tensor:
    found = [bags.module.look_up_distinct_eagerly(bags.ids) for bags in features]
    lengths = [bags.lengths for bags in features]
    if any(each.leaf is not None for each in found):
        apply: Callable[..., Tensor] = _Sum.apply
        return apply(found, lengths, graph_input())
    return _sum(found, lengths)


# torch.compile breaks its graph here because it cannot trace the store that rows come from.
@_disable_dynamo
def _sum_outside_graph(features: Sequence[Bags]) -> Tensor:
    return _sum_eagerly(features)


class _Sum(torch.autograd.Function):
    """The autograd function for sums; rows are not part of the graph (see `graph_input`)."""

    @staticmethod
    def forward(
        ctx: Any, found: list[DistinctRows], lengths: list[Lengths], graph_input: Tensor
    ) -> Tensor:
        ctx.save_for_backward(graph_input)
        ctx.found, ctx.lengths = found, lengths
        return _sum(found, lengths)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None]:
        if torch.is_grad_enabled():
            raise ConfigError(
                "bag sums have no second derivative, but backward() was called with "
                "create_graph=True; look up the ids with SparseEmbedding and sum with torch instead"
            )
        _ = ctx.saved_tensors  # raises if an earlier backward pass freed the saved tensors
        sums = _zeros(ctx.found)
        features = list(zip(sums, (each.places for each in ctx.found), ctx.lengths, strict=True))
        _core.add_bag_gradients(np.ascontiguousarray(gradient.numpy()), features)
        for leaf, added in {
            each.leaf: one for each, one in zip(ctx.found, sums, strict=True)
        }.items():
            if leaf is not None:
                leaf.add(added)
        return None, None, None


def _zeros(found: list[DistinctRows]) -> list[Floats]:
    """Return zeroed gradient arrays for each feature's rows; features with equal rows share one."""
    keys = [(id(each.array), each.leaf is None) for each in found]  # rows may also be frozen
    shapes = {key: each.array.shape for key, each in zip(keys, found, strict=True)}
    whole = np.zeros(sum(rows * dim for rows, dim in shapes.values()), np.float32)
    parts = {}
    end = 0
    for key, (rows, dim) in shapes.items():
        begin, end = end, end + rows * dim
        parts[key] = whole[begin:end].reshape(rows, dim)
    return [parts[key] for key in keys]


def _sum(found: list[DistinctRows], lengths: list[Lengths]) -> Tensor:
    width = sum(each.array.shape[1] for each in found)
    out = np.empty((len(lengths[0]), width), np.float32)
    features = [
        (each.array, each.places, length) for each, length in zip(found, lengths, strict=True)
    ]
    _core.sum_bags(features, out)
    return torch.from_numpy(out)
