"""Rows of a bag of ids, brought into one.

Letters: B bags, L ids in a bag, N ids in all, D row width.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch

from sparsefleet.errors import ConfigError, ShapeError
from sparsefleet.nn.bag_sums import SumBags, bags_of_lengths, traced_bags
from sparsefleet.nn.lookup import check_ids, check_offsets
from sparsefleet.nn.sparse_module import SparseModule
from sparsefleet.nn.step_rows import is_traced
from sparsefleet.store import (
    AdmitAlways,
    AdmitByCount,
    AdmitByProbability,
    Evict,
    Initializer,
    NonFinitePolicy,
    Normal,
    Store,
    TableSpec,
)
from sparsefleet.store.optimizers import Optimizer
from sparsefleet.store.store import Unknown

BagMode = Literal["sum", "mean", "sqrtn"]


class SparseEmbeddingBag(SparseModule):
    """`nn.EmbeddingBag` over a table that grows: the rows of each bag as their sum or mean.

    ``forward(ids, offsets=None, weights=None)``:

    * ids int64[..., L] without offsets: bags of L ids along the last dimension -> [..., D];
    * ids int64[N] with offsets int64[B], where each bag begins -> float32[B, D]. With
      ``include_last_offset`` offsets is int64[B + 1] and ends with N. The pair (ids, offsets)
      may also come as one argument.

    With w the weights (float32, as many as ids; 1 if none) and x the rows of a bag, ``mode`` is
    "sum": sum(w x); "mean": sum(w x) / sum(w); "sqrtn": sum(w x) / sqrt(sum(w w)). Padding ids
    count nowhere. A bag of nothing, or of weights that come to 0 below the line, is zeros.
    Weights that require it get gradients. Everything else is as in `SparseEmbedding`.

    >>> import torch
    >>> from sparsefleet.nn import SparseEmbeddingBag
    >>> from sparsefleet.store import Constant
    >>> tags = SparseEmbeddingBag("tags", 2, mode="sum", initializer=Constant(1.0))
    >>> tags(torch.tensor([5, 6, 7]), torch.tensor([0, 2])).detach()
    tensor([[2., 2.],
            [1., 1.]])
    """

    def __init__(
        self,
        name: str,
        dim: int,
        *,
        mode: BagMode = "mean",
        include_last_offset: bool = False,
        initializer: Initializer | None = None,
        optimizer: Optimizer | None = None,
        admission: AdmitAlways | AdmitByCount | AdmitByProbability | None = None,
        eviction: Evict | None = None,
        seed: int = 0,
        non_finite: NonFinitePolicy = "reject_row",
        padding_id: int | None = None,
        unknown: Unknown = "zeros",
        store: Store | None = None,
    ) -> None:
        if mode not in get_args(BagMode):
            raise ConfigError(
                f"SparseEmbeddingBag '{name}': mode must be 'sum', 'mean' or 'sqrtn', got {mode!r}"
            )
        spec = TableSpec(
            name=name,
            dim=dim,
            initializer=initializer or Normal(),
            admission=admission or AdmitAlways(),
            eviction=eviction or Evict(),
            seed=seed,
            non_finite=non_finite,
        )
        super().__init__(
            spec, optimizer=optimizer, padding_id=padding_id, unknown=unknown, store=store
        )
        self.mode = mode
        self.include_last_offset = include_last_offset

    def forward(
        self,
        ids: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        offsets: torch.Tensor | None = None,
        weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """One row for each bag; see the class for shapes."""
        if isinstance(ids, tuple):
            if offsets is not None:
                raise ShapeError(f"table '{self.name}': ids is a pair with offsets; give no others")
            ids, offsets = ids
        if isinstance(ids, torch.Tensor) and ids.is_cuda:
            others = (None if value is None else value.cpu() for value in (offsets, weights))
            return self.forward(ids.cpu(), *others).to(ids.device)
        check_ids(self.name, ids)
        sum_bags = self._bags(ids, offsets)
        if weights is not None:
            self._check_weights(ids, weights)
        rows = self._look_up(ids)  # zeros for padding
        scaled = rows if weights is None else rows * weights.unsqueeze(-1)
        total = sum_bags(scaled, -2)
        if self.mode == "sum":
            return total
        shares = self._shares(ids, weights)
        if self.mode == "sqrtn" and weights is not None:
            shares = shares * shares
        divisor = sum_bags(shares, -1).unsqueeze(-1)
        # Infinity makes zeros of what has nothing below the line, in value and in gradient.
        divisor = divisor.masked_fill(divisor == 0, math.inf)
        return total / (divisor.sqrt() if self.mode == "sqrtn" else divisor)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, mode={self.mode!r}"

    def _bags(self, ids: torch.Tensor, offsets: torch.Tensor | None) -> SumBags:
        """How the values of ids become those of bags."""
        if offsets is None:
            if ids.dim() < 2:
                raise ShapeError(
                    f"table '{self.name}': ids of shape {tuple(ids.shape)} need offsets, "
                    "or bags along the last of two or more dimensions"
                )
            return torch.sum
        if ids.dim() != 1:
            raise ShapeError(
                f"table '{self.name}': ids with offsets must have one dimension, "
                f"got shape {tuple(ids.shape)}"
            )
        if is_traced():
            return traced_bags(ids, offsets[:-1] if self.include_last_offset else offsets)
        check_offsets(self.name, offsets, ids.numel(), closed=self.include_last_offset)
        if self.include_last_offset:
            return bags_of_lengths(offsets.diff())
        return bags_of_lengths(offsets.diff(append=offsets.new_tensor([ids.numel()])))

    def _check_weights(self, ids: torch.Tensor, weights: torch.Tensor) -> None:
        if weights.dtype is not torch.float32 or weights.shape != ids.shape:
            raise ShapeError(
                f"table '{self.name}': weights must be float32 of the shape of ids, "
                f"{tuple(ids.shape)}, got {weights.dtype} of shape {tuple(weights.shape)}"
            )

    def _shares(self, ids: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
        """What each id counts below the line: its weight, nothing for padding."""
        shares = torch.ones(ids.shape) if weights is None else weights
        if self.padding_id is None:
            return shares
        return shares.masked_fill(ids == self.padding_id, 0.0)
