"""Sums of the rows of bags of ids, computed on the distinct rows of a batch.

Letters: B bags, N ids of all bags, D row width, U distinct rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch._compile import _disable_dynamo

from sparsefleet import _core
from sparsefleet.errors import ConfigError
from sparsefleet.nn.pulled_rows import DistinctRows
from sparsefleet.nn.sparse_module import SparseModule

__all__ = ["Bags", "sum_rows_by_bag"]


class Bags(NamedTuple):
    """The bags of one feature."""

    module: SparseModule
    ids: Tensor
    """int64[N], on the CPU."""
    lengths: Tensor
    """int64[B], validated: not negative, N in total."""


def sum_rows_by_bag(features: Sequence[Bags]) -> Tensor:
    """Return the sums of the rows of all bags, the features side by side: float32[B, sum of D].

    Neither rows nor gradients are copied per id. Padding adds nothing. There is no second
    derivative.

    >>> from sparsefleet.nn import SparseEmbedding
    >>> from sparsefleet.store import Constant
    >>> ads = SparseEmbedding("ads", 2, initializer=Constant(1.0)).eval()
    >>> ads.unknown = "initial"
    >>> sum_rows_by_bag([Bags(ads, torch.tensor([5, 6, 5]), torch.tensor([2, 1]))])
    tensor([[2., 2.],
            [1., 1.]])
    """
    if torch.compiler.is_dynamo_compiling():
        return _sum_outside_graph(features)
    return _sum_eagerly(features)


def _sum_eagerly(features: Sequence[Bags]) -> Tensor:
    found = [bags.module.look_up_distinct(bags.ids) for bags in features]
    lengths = [np.ascontiguousarray(bags.lengths.numpy(), np.int64) for bags in features]
    leaves = list({id(each.rows): each.rows for each in found}.values())
    if any(leaf.requires_grad for leaf in leaves):
        places = {id(leaf): place for place, leaf in enumerate(leaves)}
        apply: Callable[..., Tensor] = _Sum.apply
        return apply(found, lengths, [places[id(each.rows)] for each in found], *leaves)
    return _sum(found, lengths)


# torch.compile breaks its graph here: rows come from a store, which it cannot trace.
@_disable_dynamo
def _sum_outside_graph(features: Sequence[Bags]) -> Tensor:
    return _sum_eagerly(features)


class _Sum(torch.autograd.Function):
    """Sums for autograd; the leaves are only graph inputs, values come from their memory."""

    @staticmethod
    def forward(
        ctx: Any,
        found: list[DistinctRows],
        lengths: list[Any],
        leaf_of: list[int],  # of each feature
        *leaves: Tensor,
    ) -> Tensor:
        ctx.save_for_backward(*leaves)
        ctx.places, ctx.lengths, ctx.leaf_of = [each.places for each in found], lengths, leaf_of
        return _sum(found, lengths)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        if torch.is_grad_enabled():
            raise ConfigError(
                "sums of bags have no second derivative, but backward() was called with "
                "create_graph=True; look the ids up with SparseEmbedding and sum with torch there"
            )
        # Raises if an earlier backward pass freed them. They may be other tensors than in the
        # forward pass: torch.utils.checkpoint and save_on_cpu replace what is saved.
        sums = [np.zeros(leaf.shape, np.float32) for leaf in ctx.saved_tensors]
        features = [
            (sums[leaf], places, lengths)
            for leaf, places, lengths in zip(ctx.leaf_of, ctx.places, ctx.lengths, strict=True)
        ]
        _core.add_bag_gradients(np.ascontiguousarray(gradient.numpy()), features)
        return None, None, None, *(torch.from_numpy(each) for each in sums)


def _sum(found: list[DistinctRows], lengths: list[Any]) -> Tensor:
    width = sum(each.array.shape[1] for each in found)
    out = np.empty((len(lengths[0]), width), np.float32)
    features = [
        (each.array, each.places, length) for each, length in zip(found, lengths, strict=True)
    ]
    _core.sum_bags(features, out)
    return torch.from_numpy(out)
