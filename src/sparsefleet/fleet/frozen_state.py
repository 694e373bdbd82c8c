"""What no table holds though all workers must begin with the same."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from sparsefleet import optim
from sparsefleet.fleet.dense_optimizer import DenseGroup
from sparsefleet.store import DenseSpec, Store

__all__ = ["FrozenState"]

_TABLE = "frozen"


class FrozenState:
    """The float32 parameters that no optimizer holds, and the buffers, of a model."""

    def __init__(self, model: nn.Module, groups: Sequence[DenseGroup]) -> None:
        optimised = {id(p) for group in groups for p in group.parameters}
        tensors = [p.data for p in model.parameters() if id(p) not in optimised]
        tensors += list(model.buffers())
        self._tensors = [t for t in tensors if t.dtype == torch.float32 and t.numel()]

    def share(self, store: Store) -> None:
        """Leaves the values with the store, for the other workers."""
        if self._tensors:
            self._define(store)
            values = torch.cat([tensor.reshape(-1) for tensor in self._tensors])
            store.write_dense(_TABLE, values.numpy())

    def take(self, store: Store) -> None:
        """Takes over the values that another worker has shared."""
        if self._tensors:
            self._define(store)
            values = torch.from_numpy(store.pull_dense(_TABLE))
            parts = torch.split(values, [tensor.numel() for tensor in self._tensors])
            for tensor, part in zip(self._tensors, parts, strict=True):
                tensor.copy_(part.view(tensor.shape))

    def _define(self, store: Store) -> None:
        size = sum(tensor.numel() for tensor in self._tensors)
        store.define(DenseSpec(name=_TABLE, size=size, optimizer=optim.SGD(lr=0.0)))
