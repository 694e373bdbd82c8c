"""Dot products between rows of two embeddings.

In shapes, N is the number of rows on the left, K the number of rows on the right for each of them,
D the row width, and U the number of distinct rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparsefleet import _core
from sparsefleet.errors import ConfigError, ShapeError
from sparsefleet.nn.pulled_rows import DistinctRows, graph_input
from sparsefleet.nn.sparse_embedding import SparseEmbedding
from sparsefleet.nn.step_rows import is_traced

__all__ = ["embedding_dots"]


def embedding_dots(
    left: SparseEmbedding, left_ids: Tensor, right: SparseEmbedding, right_ids: Tensor
) -> Tensor:
    """Return the dot product of each row of ``left`` with its rows of ``right``.

    left_ids: int64 of any shape, such as [N]. right_ids: int64 of the same shape, for one row per
    left id, or of that shape with extra dimensions, such as [N, K], for K rows each. The result,
    float32[*right_ids.shape], is

        (left(left_ids).unsqueeze(-2) * right(right_ids)).sum(-1)

    computed on the distinct rows of the batch, so neither rows nor gradients are copied per id. Use
    it for skip-gram, matrix factorization, BPR, and two-tower models whose towers are tables.
    ``left`` and ``right`` may use the same table. The dot product with a padding id is 0. The order
    of summation does not depend on the processor. There is no second derivative.

    >>> from sparsefleet.nn import apply_gradients
    >>> from sparsefleet.optim import SGD
    >>> from sparsefleet.store import Constant
    >>> users = SparseEmbedding("users", 4, initializer=Constant(2.0), optimizer=SGD(lr=0.5))
    >>> films = SparseEmbedding("films", 4, initializer=Constant(1.0), optimizer=SGD(lr=0.5))
    >>> user, shown = torch.tensor([7, 9]), torch.tensor([[1, 2, 3], [2, 2, 4]])
    >>> scores = embedding_dots(users, user, films, shown)
    >>> scores
    tensor([[8., 8., 8.],
            [8., 8., 8.]], grad_fn=<_DotsBackward>)
    >>> scores.sum().backward()
    >>> apply_gradients(torch.nn.ModuleList([users, films])).applied
    6
    >>> films.eval()(torch.tensor([1, 2]))
    tensor([[ 0.,  0.,  0.,  0.],
            [-2., -2., -2., -2.]])
    """
    _check(left, left_ids, right, right_ids)
    if is_traced():
        rows = left(left_ids)
        alone = right_ids.dim() - left_ids.dim()
        rows = rows.reshape(*left_ids.shape, *[1] * alone, left.dim)
        scores: Tensor = (rows * right(right_ids)).sum(-1)
        return scores
    if right_ids.is_cuda:
        return embedding_dots(left, left_ids.cpu(), right, right_ids.cpu()).to(right_ids.device)
    sides = (left.look_up_distinct(left_ids), right.look_up_distinct(right_ids))
    if sides[0].leaf is not None or sides[1].leaf is not None:
        apply: Callable[..., Tensor] = _Dots.apply
        return apply(sides, right_ids.shape, graph_input())
    return _dots(*sides, right_ids.shape)


class _Dots(torch.autograd.Function):
    """The autograd function for dot products; rows are not in the graph (see `graph_input`)."""

    @staticmethod
    def forward(
        ctx: Any, sides: tuple[DistinctRows, DistinctRows], shape: torch.Size, graph_input: Tensor
    ) -> Tensor:
        ctx.save_for_backward(graph_input)
        ctx.sides = sides
        return _dots(*sides, shape)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None]:
        if torch.is_grad_enabled():
            raise ConfigError(
                "embedding_dots has no second derivative, but backward() was called with "
                "create_graph=True; use torch operators instead: "
                "(left(left_ids).unsqueeze(-2) * right(right_ids)).sum(-1)"
            )
        _ = ctx.saved_tensors  # raises if an earlier backward pass freed the saved tensors
        left, right = ctx.sides
        sums = {side.leaf: np.empty_like(side.array) for side in ctx.sides if side.leaf is not None}
        _core.sum_dot_gradients(
            np.ascontiguousarray(gradient.numpy()).reshape(-1),
            left.array,
            left.places,
            right.array,
            right.places,
            sums.get(left.leaf),
            sums.get(right.leaf),
        )
        for leaf, added in sums.items():
            leaf.add(added)
        return None, None, None


def _dots(left: DistinctRows, right: DistinctRows, shape: torch.Size) -> Tensor:
    out = np.empty(shape, np.float32)
    _core.dot_rows(left.array, left.places, right.array, right.places, out.reshape(-1))
    return torch.from_numpy(out)


def _check(
    left: SparseEmbedding, left_ids: Tensor, right: SparseEmbedding, right_ids: Tensor
) -> None:
    for module in (left, right):
        if not isinstance(module, SparseEmbedding):
            raise ConfigError(
                f"embedding_dots takes two SparseEmbedding modules, got a {type(module).__name__}"
            )
    if left.dim != right.dim:
        raise ShapeError(
            f"embedding_dots: table '{left.name}' has width {left.dim}, table "
            f"'{right.name}' has width {right.dim}; both must have the same width"
        )
    for module, ids in ((left, left_ids), (right, right_ids)):
        if not isinstance(ids, Tensor):
            raise ShapeError(
                f"embedding_dots: ids of table '{module.name}' must be an int64 or int32 "
                f"tensor, got {type(ids).__name__}"
            )
    if right_ids.shape[: left_ids.dim()] != left_ids.shape:
        raise ShapeError(
            f"embedding_dots: ids of table '{right.name}' have shape {list(right_ids.shape)}, "
            f"expected {list(left_ids.shape)}, the shape of the ids of table '{left.name}', "
            "or a shape that starts with it"
        )
