"""The dense tensors of a model by name: those in tables of the store, and those only here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sparsefleet.errors import ConfigError

__all__ = ["ModelTensors", "state_on"]


class ModelTensors:
    """Parameters and persistent buffers of a model, once each.

    in_tables: dense table -> the names of the parameters in it, in order.
    stepped_by: the optimizer of torch that steps on parameters here; None where the store does.

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
        """Dense table -> name and shape of its parameters, in order."""
        self._elsewhere = {name for names in in_tables.values() for name in names}

    def own_names(self) -> list[str]:
        """The tensors that no table holds: buffers, frozen parameters, those torch steps on."""
        return list(self._own())

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of all of them, without optimizer state."""
        own = {name: tuple(tensor.shape) for name, tensor in self._own().items()}
        return {
            name: shape for names in self.in_tables.values() for name, shape in names.items()
        } | own

    def copy_own(self, only: Callable[[str], bool]) -> dict[str, NDArray[Any]]:
        """Copies of the tensors that no table holds, with the state of torch's optimizer."""
        copies = {}
        for name, tensor in self._own().items():
            if only(name):
                copies[name] = _to_array(name, tensor)
                for key, value in self._state_of(name).items():
                    copies[f"{name}/{key}"] = _to_array(name, torch.as_tensor(value))
        return copies

    def take_own(self, arrays: Mapping[str, NDArray[Any]], only: Callable[[str], bool]) -> None:
        """Overwrites them with arrays of the same names and shapes."""
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


def state_on(state: Tensor, device: torch.device) -> Tensor:
    """State of torch's optimizer of a parameter there; numbers, as of steps, stay on the CPU."""
    return state.to(device) if state.dim() else state


def _to_array(name: str, tensor: Tensor) -> NDArray[Any]:
    try:
        return np.array(tensor.detach().cpu().numpy())
    except TypeError as error:  # bfloat16 and others that NumPy has not
        raise ConfigError(
            f"'{name}' has type {tensor.dtype}, which checkpoints cannot hold: make it float32"
        ) from error
