"""What a worker's scope holds of parameters that live on servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from sparsefleet import optim
from sparsefleet.errors import ConfigError
from sparsefleet.fleet.distributed_model import DistributedModel
from sparsefleet.fluid.lod_tensor import LoDTensor
from sparsefleet.fluid.sparse_parameter import SparseParameter
from sparsefleet.nn.pulled_rows import Pull
from sparsefleet.store import Rows, Store
from sparsefleet.store.arrays import Floats, Keys

__all__ = ["ServedRows", "ServedTensor"]


class ServedTensor(LoDTensor):
    """A view of the worker's copy of a parameter.

    write: sets it here and on the servers.
    """

    def __init__(
        self, tensor: torch.Tensor, write: Callable[[torch.Tensor, torch.Tensor], None]
    ) -> None:
        super().__init__(tensor)
        self._write = write

    def set(self, array: Any, place: Any = None, zero_copy: bool = False) -> None:
        given = LoDTensor()
        given.set(array, place, zero_copy=True)
        del zero_copy
        held, new = self.tensor, given.tensor
        if held.shape != new.shape:
            raise ValueError(
                f"a parameter on servers has shape {tuple(held.shape)}, got an array of shape "
                f"{tuple(new.shape)}"
            )
        self._write(held.data, new)


class ServedRows(SparseParameter):
    """A parameter whose rows are on servers: read through the mode, updated by its steps only."""

    def __init__(
        self, name: str, shape: tuple[int, ...], optimizer: optim.Optimizer, model: DistributedModel
    ) -> None:
        self.name = name
        self.height, self.dim = shape
        self.optimizer = optimizer
        self._model = model

    @property
    def store(self) -> Store:  # type: ignore[override]
        """The servers' tables."""
        return self._model.store

    @property
    def source(self) -> Pull:
        """The same for all tables of a training, so that one request brings all."""
        return self._model.mode.pull

    def pull(self, keys: Keys, *, train: bool) -> Floats:
        return self.source({self.name: keys}, train=train, unknown="initial")[self.name]

    def set(self, array: Any, place: Any = None, zero_copy: bool = False) -> None:
        """The first worker's rows become the servers'; other workers do not change them."""
        if self._model.role.is_first_worker:
            super().set(array, place, zero_copy)

    def load_rows(self, rows: Rows, optimizer: str) -> None:
        """As `set`."""
        if self._model.role.is_first_worker:
            super().load_rows(rows, optimizer)

    def push(self, gradient: tuple[Keys, Floats], rate: float) -> None:
        del gradient, rate
        raise ConfigError(
            f"parameter '{self.name}' is on servers: its gradients go with those of the step, by "
            "the program that minimize or transpile changed"
        )
