"""A model's named dense tensors, in the store's tables and in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sparsefleet.engine.dense_groups import DenseGroup
from sparsefleet.errors import ConfigError

__all__ = ["FrozenState", "ModelTensors", "state_on"]


class ModelTensors:
    """A model's parameters and persistent buffers, each listed once.

    in_tables: the names of the parameters in each dense table, in order.
    stepped_by: the torch optimizer that steps the parameters in this process; None if the store
        updates them.

    >>> model = nn.BatchNorm1d(2)
    >>> tensors = ModelTensors(model, {"dense": ["weight", "bias"]}, None)
    >>> sorted(tensors.own_names())
    ['num_batches_tracked', 'running_mean', 'running_var']
    >>> tensors.in_tables
    {'dense': {'weight': (2,), 'bias': (2,)}}
    """

    def __init__(
        self,
        model: nn.Module,
        in_tables: Mapping[str, Sequence[str]],
        stepped_by: torch.optim.Optimizer | None,
    ) -> None:
        self._model = model
        self._optimizer = stepped_by
        parameters = dict(model.named_parameters())
        self.in_tables: dict[str, dict[str, tuple[int, ...]]] = {
            table: {name: tuple(parameters[name].shape) for name in names}
            for table, names in in_tables.items()
        }
        """The names and shapes of each dense table's parameters, in order."""
        self._elsewhere = {name for names in in_tables.values() for name in names}

    def own_names(self) -> list[str]:
        """Return the tensors that no table holds: buffers, frozen parameters, and parameters
        stepped by torch.
        """
        return list(self._own())

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of all tensors by name, without optimizer state."""
        own = {name: tuple(tensor.shape) for name, tensor in self._own().items()}
        return {
            name: shape for names in self.in_tables.values() for name, shape in names.items()
        } | own

    def copy_own(self, only: Callable[[str], bool]) -> dict[str, NDArray[Any]]:
        """Return copies of the tensors that no table holds, with torch's optimizer state."""
        copies = {}
        for name, tensor in self._own().items():
            if only(name):
                copies[name] = _to_array(name, tensor)
                for key, value in self._state_of(name).items():
                    copies[f"{name}/{key}"] = _to_array(name, torch.as_tensor(value))
        return copies

    def take_own(self, arrays: Mapping[str, NDArray[Any]], only: Callable[[str], bool]) -> None:
        """Overwrite the tensors that no table holds with arrays of the same names and shapes."""
        parameters = dict(self._model.named_parameters())
        with torch.no_grad():
            for name, tensor in self._own().items():
                if not only(name):
                    continue
                tensor.copy_(torch.from_numpy(np.array(arrays[name])))
                if self._optimizer is not None and name in parameters:
                    state = self._optimizer.state[parameters[name]]
                    state.clear()
                    for key, array in arrays.items():
                        owner, _, part = key.rpartition("/")
                        if owner == name:
                            state[part] = state_on(torch.from_numpy(np.array(array)), tensor.device)

    def _own(self) -> dict[str, Tensor]:
        own: dict[str, Tensor] = {}
        for name, parameter in self._model.named_parameters():
            if name not in self._elsewhere:
                own[name] = parameter.data
        seen: set[int] = set()
        for prefix, module in self._model.named_modules():
            for name, buffer in module._buffers.items():
                kept = buffer is not None and name not in module._non_persistent_buffers_set
                if kept and id(buffer) not in seen:
                    seen.add(id(buffer))
                    assert buffer is not None
                    own[f"{prefix}.{name}" if prefix else name] = buffer.data
        return own

    def _state_of(self, name: str) -> Mapping[str, Any]:
        if self._optimizer is None:
            return {}
        parameter = dict(self._model.named_parameters()).get(name)
        state = {} if parameter is None else self._optimizer.state.get(parameter, {})
        return {k: v for k, v in state.items() if isinstance(v, (Tensor, int, float))}


class FrozenState:
    """A model's buffers, and its parameters that no optimizer holds, of any type."""

    def __init__(self, model: nn.Module, groups: Sequence[DenseGroup]) -> None:
        optimised = {id(p) for group in groups for p in group.parameters}
        tensors = [p.data for p in model.parameters() if id(p) not in optimised]
        tensors += list(model.buffers())
        self._tensors = [tensor for tensor in tensors if tensor.numel()]

    def to_bytes(self) -> bytes:
        """Return the values as bytes, to be sent to other workers."""
        return b"".join(
            tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
            for tensor in self._tensors
        )

    def take(self, values: bytes) -> None:
        """Overwrite the buffers and parameters with those of a worker that has the same model."""
        sizes = [tensor.numel() * tensor.element_size() for tensor in self._tensors]
        if len(values) != sum(sizes):
            raise ConfigError(
                f"the model's buffers and frozen parameters have {sum(sizes)} bytes here, but "
                f"{len(values)} on the first worker: all workers must create the same model"
            )
        begin = 0
        for tensor, size in zip(self._tensors, sizes, strict=True):
            part = torch.frombuffer(bytearray(values[begin : begin + size]), dtype=tensor.dtype)
            tensor.copy_(part.view(tensor.shape))
            begin += size


def state_on(state: Tensor, device: torch.device) -> Tensor:
    """Return optimizer state moved to its parameter's device; step counters stay on the CPU."""
    return state.to(device) if state.dim() else state


def _to_array(name: str, tensor: Tensor) -> NDArray[Any]:
    try:
        return np.array(tensor.detach().cpu().numpy())
    except TypeError as error:  # bfloat16 and other types missing from NumPy
        raise ConfigError(
            f"'{name}' has type {tensor.dtype}, which checkpoints do not support: convert it to "
            "float32"
        ) from error
