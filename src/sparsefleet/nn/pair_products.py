"""The dot products of all pairs of vectors, as in DLRM.

In shapes, B is the number of examples, F the number of vectors of an example, D their width, and
P = F * (F - 1) / 2 the number of pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sparsefleet.nn.step_rows import is_traced

__all__ = ["PairProducts"]


class PairProducts(nn.Module):
    """Returns the dot product of each pair of vectors: float32[B, F, D] -> float32[B, P].

    num_vectors: F.
    lower: order the pairs (i, j) with i > j by i and then j; otherwise i < j.

    >>> PairProducts(3)(torch.tensor([[[1.0], [2.0], [4.0]]]))
    tensor([[2., 4., 8.]])
    """

    def __init__(self, num_vectors: int, *, lower: bool = False) -> None:
        super().__init__()
        if lower:
            rows, columns = torch.tril_indices(num_vectors, num_vectors, offset=-1)
        else:
            rows, columns = torch.triu_indices(num_vectors, num_vectors, offset=1)
        pair_of = torch.full((num_vectors, num_vectors), len(rows))  # the diagonal is no pair
        pair_of[rows, columns] = pair_of[columns, rows] = torch.arange(len(rows))
        self.register_buffer("pairs", rows * num_vectors + columns, persistent=False)
        self.register_buffer("pair_of", pair_of.flatten(), persistent=False)

    def forward(self, vectors: Tensor) -> Tensor:
        pairs = self.get_buffer("pairs")
        is_recorded = torch.compiler.is_compiling() or is_traced()
        if is_recorded or not (torch.is_grad_enabled() and vectors.requires_grad):
            return _products(vectors, pairs)
        apply: Callable[..., Tensor] = _Products.apply
        return apply(vectors, pairs, self.get_buffer("pair_of"))


def _products(vectors: Tensor, pairs: Tensor) -> Tensor:
    return (vectors @ vectors.transpose(1, 2)).flatten(1).index_select(1, pairs)


class _Products(torch.autograd.Function):
    """Needs one matrix product in backward, where autograd's own formula takes two and adds them.

    The gradient by the matrix of all products is symmetric, because a pair stands for both of its
    places.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(vectors: Tensor, pairs: Tensor, _pair_of: Tensor) -> Tensor:
        return _products(vectors, pairs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], _output: Tensor) -> None:
        vectors, _, pair_of = inputs
        ctx.save_for_backward(vectors, pair_of)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        vectors, pair_of = ctx.saved_tensors
        num_vectors = vectors.shape[1]
        with_zero = functional.pad(gradient, (0, 1))  # the last column is read by the diagonal
        symmetric = with_zero.index_select(1, pair_of).view(-1, num_vectors, num_vectors)
        # Under autocast, the products are bfloat16 and the vectors may be float32.
        return symmetric.to(vectors.dtype) @ vectors, None, None
