"""An embedding with one row per id."""

from __future__ import annotations

import torch

from sparsefleet.nn.lookup import check_offsets
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


class SparseEmbedding(SparseModule):
    """`nn.Embedding` over a growing table: any int64 is a valid id; rows are created on first use.

    ``forward(ids)``: ids int64 or int32 of any shape -> float32[*ids.shape, dim]. Ragged ids, given
    as a pair ``(values int64[N], offsets)``, return the rows of the values: float32[N, dim].

    The module has no parameters. Its rows live in the store that a trainer or `bind` bound it to;
    until then in ``store``, or in a private store created on first use. In ``eval()`` and under
    ``torch.no_grad()`` no row is created; unknown ids read as zeros or, with
    ``unknown="initial"``, as the values that their rows would start with. See docs/embeddings.md.

    >>> import torch
    >>> from sparsefleet.nn import SparseEmbedding, apply_gradients
    >>> from sparsefleet.optim import SGD
    >>> from sparsefleet.store import Constant
    >>> users = SparseEmbedding("users", 2, initializer=Constant(1.0), optimizer=SGD(lr=0.5))
    >>> users(torch.tensor([[7, 9]])).sum().backward()
    >>> apply_gradients(users).applied
    2
    >>> users.eval()(torch.tensor([7, 8]))
    tensor([[0.5000, 0.5000],
            [0.0000, 0.0000]])
    """

    def __init__(
        self,
        name: str,
        dim: int,
        *,
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

    def forward(self, ids: torch.Tensor | tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Return the rows of ``ids``: float32[*ids.shape, dim].

        For ragged ids, return the rows of the values.
        """
        if isinstance(ids, tuple):
            values, offsets = ids
            if not is_traced():
                check_offsets(
                    self.name,
                    offsets.cpu() if values.is_cuda else offsets,
                    values.numel(),
                    closed=False,
                )
            return self._look_up(values)
        return self._look_up(ids)
