"""An embedding that reduces the rows of each bag of ids to a single row.

In shapes, B is the number of bags, L the number of ids per bag, N the number of ids in total, and D
the row width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, cast, get_args

import numpy as np
import torch
from torch import Tensor

from sparsefleet.errors import ConfigError, ShapeError
from sparsefleet.nn.bag_sums import Bags, sum_rows_by_bag
from sparsefleet.nn.lookup import (
    KeyedJagged,
    check_ids,
    check_keyed_jagged,
    check_lengths,
    check_offsets,
    is_keyed_jagged,
    weights_of,
)
from sparsefleet.nn.sparse_module import SparseModule, check_name
from sparsefleet.nn.step_rows import is_traced
from sparsefleet.store import (
    AdmitAlways,
    AdmitByCount,
    AdmitByProbability,
    Evict,
    Initializer,
    NonFinitePolicy,
    Normal,
    RowDtype,
    Store,
    TableSpec,
)
from sparsefleet.store.optimizers import Optimizer
from sparsefleet.store.store import Unknown

SumBags = Callable[[Tensor, int], Tensor]
"""Sums values of ids by bag along the given dimension, which shrinks from N to B."""


class BagsOfLengths:
    """Sums values over consecutive bags of the given lengths, int64[B].

    Raises ShapeError unless the lengths are >= 0 and add up to the number of values.

    >>> BagsOfLengths(torch.tensor([2, 0, 1]))(torch.tensor([1.0, 2.0, 3.0]), -1)
    tensor([3., 0., 3.])
    """

    def __init__(self, lengths: Tensor) -> None:
        self.lengths = lengths

    def __call__(self, values: Tensor, dim: int) -> Tensor:
        del dim
        check_lengths(self.lengths.cpu().numpy(), values.shape[0])
        # "unsafe" trusts the lengths: wrong ones would read beyond the values.
        return torch.segment_reduce(values, "sum", lengths=self.lengths, unsafe=True, initial=0.0)


BagMode = Literal["sum", "mean", "sqrtn"]


def traced_bags(ids: Tensor, starts: Tensor) -> SumBags:
    """Return a sum over bags that start at ``starts`` (int64[B]), built from traceable operators.

    Offsets beyond the ids fail in ``index_add``; nothing is read out of bounds.

    >>> traced_bags(torch.tensor([7, 8, 9]), torch.tensor([0, 2, 2]))(torch.ones(3), -1)
    tensor([2., 0., 1.])
    """
    num_ids, num_bags = ids.shape[0], starts.shape[0]
    begins = starts.new_zeros(num_ids + 1).index_add(0, starts, torch.ones_like(starts))
    bag_of_id = begins.cumsum(0)[:num_ids] - 1

    def sum_bags(values: Tensor, dim: int) -> Tensor:
        del dim
        return values.new_zeros(num_bags, *values.shape[1:]).index_add(0, bag_of_id, values)

    return sum_bags


class SparseEmbeddingBag(SparseModule):
    """`nn.EmbeddingBag` over a growing table: the sum or mean of the rows of each bag.

    ``forward(ids, offsets=None, weights=None)``:

    * ids int64[..., L] without offsets: bags of L ids along the last dimension -> [..., D];
    * ids int64[N] with offsets int64[B], the start of each bag -> float32[B, D]. With
      ``include_last_offset``, offsets is int64[B + 1] and ends with N. The pair (ids, offsets)
      may also be passed as one argument;
    * an object with the methods ``keys()``, ``values()`` and ``offsets()`` of TorchRec's
      KeyedJaggedTensor, with K keys of B bags each -> float32[B, K * D], the keys concatenated. If
      the object has a method ``weights_or_none()``, it returns the weights.

    With weights w (float32, one per id; 1 if omitted) and the rows x of a bag, ``mode`` is
    "sum": sum(w x); "mean": sum(w x) / sum(w); "sqrtn": sum(w x) / sqrt(sum(w w)). Padding ids
    are ignored. The result for an empty bag, or for a bag whose divisor is 0, is zeros. Weights
    that require gradients receive gradients. Everything else works as in `SparseEmbedding`.

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
        row_dtype: RowDtype = "float32",
        padding_idx: int | None = None,
        unknown: Unknown = "zeros",
        store: Store | None = None,
    ) -> None:
        if mode not in get_args(BagMode):
            raise ConfigError(
                f"SparseEmbeddingBag '{name}': mode must be 'sum', 'mean' or 'sqrtn', got {mode!r}"
            )
        check_name(type(self).__name__, name)
        spec = TableSpec(
            name=name,
            dim=dim,
            initializer=initializer or Normal(),
            admission=admission or AdmitAlways(),
            eviction=eviction or Evict(),
            seed=seed,
            non_finite=non_finite,
            row_dtype=row_dtype,
        )
        super().__init__(
            spec, optimizer=optimizer, padding_idx=padding_idx, unknown=unknown, store=store
        )
        self.mode = mode
        self.include_last_offset = include_last_offset

    def forward(
        self,
        ids: torch.Tensor | tuple[torch.Tensor, torch.Tensor] | KeyedJagged,
        offsets: torch.Tensor | None = None,
        weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return one row per bag; see the class for shapes."""
        if is_keyed_jagged(ids):
            return self._reduce_keyed(ids, offsets, weights)
        if isinstance(ids, tuple):
            if offsets is not None:
                raise ShapeError(
                    f"table '{self.name}': ids already includes offsets; do not pass offsets again"
                )
            ids, offsets = ids
        if isinstance(ids, torch.Tensor) and ids.is_cuda:
            others = (None if value is None else value.cpu() for value in (offsets, weights))
            return self.forward(ids.cpu(), *others).to(ids.device)
        check_ids(self.name, ids)
        flat = cast(Tensor, ids)
        bags = self._bags(flat, offsets, closed=self.include_last_offset)
        return self._reduce(flat, bags, weights)

    def _reduce_keyed(
        self, ids: KeyedJagged, offsets: torch.Tensor | None, weights: torch.Tensor | None
    ) -> torch.Tensor:
        if offsets is not None or weights is not None:
            raise ShapeError(
                f"table '{self.name}': a keyed jagged tensor already includes offsets and weights; "
                "pass it alone"
            )
        values, starts, weights = ids.values(), ids.offsets(), weights_of(ids)
        device = values.device
        if values.is_cuda:
            values, starts = values.cpu(), starts.cpu()
            weights = None if weights is None else weights.cpu()
        num_bags = check_keyed_jagged(self.name, ids)
        check_ids(self.name, values)
        rows = self._reduce(values, self._bags(values, starts.long(), closed=True), weights)
        by_key = rows.view(len(ids.keys()), num_bags, self.dim)
        return by_key.transpose(0, 1).reshape(num_bags, -1).to(device)

    def _reduce(
        self, ids: torch.Tensor, sum_bags: SumBags, weights: torch.Tensor | None
    ) -> torch.Tensor:
        """Reduce each bag to one row, as the module's mode says."""
        if weights is not None:
            self._check_weights(ids, weights)
        if weights is None and isinstance(sum_bags, BagsOfLengths):
            lengths = np.ascontiguousarray(sum_bags.lengths.numpy(), np.int64)
            total = sum_rows_by_bag([Bags(self, ids, lengths)])
        else:
            rows = self._look_up(ids)  # zeros for padding
            total = sum_bags(rows if weights is None else rows * weights.unsqueeze(-1), -2)
        if self.mode == "sum":
            return total
        shares = self._shares(ids, weights)
        if self.mode == "sqrtn" and weights is not None:
            shares = shares * shares
        divisor = sum_bags(shares, -1).unsqueeze(-1)
        # Dividing by infinity gives zeros where the divisor is 0, for both the value and the
        # gradient.
        divisor = divisor.masked_fill(divisor == 0, math.inf)
        return total / (divisor.sqrt() if self.mode == "sqrtn" else divisor)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, mode={self.mode!r}"

    def _bags(self, ids: torch.Tensor, offsets: torch.Tensor | None, *, closed: bool) -> SumBags:
        """Return a function that sums the values of each bag's ids."""
        if offsets is None:
            if ids.dim() < 2:
                raise ShapeError(
                    f"table '{self.name}': ids of shape {tuple(ids.shape)} need offsets, "
                    "or at least two dimensions with the bags along the last"
                )
            return torch.sum
        if ids.dim() != 1:
            raise ShapeError(
                f"table '{self.name}': ids with offsets must be one-dimensional, "
                f"got shape {tuple(ids.shape)}"
            )
        if is_traced():
            return traced_bags(ids, (offsets[:-1] if closed else offsets).long())
        check_offsets(self.name, offsets, ids.numel(), closed=closed)
        offsets = offsets.long()
        if closed:
            return BagsOfLengths(offsets.diff())
        return BagsOfLengths(offsets.diff(append=offsets.new_tensor([ids.numel()])))

    def _check_weights(self, ids: torch.Tensor, weights: torch.Tensor) -> None:
        if weights.dtype is not torch.float32 or weights.shape != ids.shape:
            raise ShapeError(
                f"table '{self.name}': weights must be float32 with the shape of ids, "
                f"{tuple(ids.shape)}, got {weights.dtype} of shape {tuple(weights.shape)}"
            )

    def _shares(self, ids: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
        """Return each id's share of the divisor: its weight, or 0 for padding."""
        shares = torch.ones(ids.shape) if weights is None else weights
        if self.padding_idx is None:
            return shares
        return shares.masked_fill(ids == self.padding_idx, 0.0)
