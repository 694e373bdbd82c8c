"""A model's dense parameters as views of flat buffers, one buffer per dense table.

In shapes, P is the number of elements in all parameters of a table.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sparsefleet.errors import ConfigError
from sparsefleet.modes.mode_setting import join
from sparsefleet.nn import fast_layers

__all__ = ["FlatParameters", "Replicas"]

Floats = NDArray[np.float32]


class FlatParameters:
    """Moves parameters into flat float32 buffers and makes them views of these buffers.

    The model and all its replicas immediately see writes to ``arrays``, so threads share one set of
    parameters. Each replica has its own parameter objects, because autograd then counts versions
    per replica and does not mistake a write by another thread for an error.

    >>> model = nn.Linear(2, 1)
    >>> flat = FlatParameters(model, {"dense": list(model.parameters())})
    >>> flat.arrays["dense"][:] = 1.0
    >>> model.bias.item(), flat.replica().bias.item()
    (1.0, 1.0)
    """

    def __init__(self, model: nn.Module, tables: Mapping[str, Sequence[nn.Parameter]]) -> None:
        self._model = model
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._names: dict[str, list[str]] = {}
        self.arrays: dict[str, Floats] = {}
        """Dense table -> its live values, float32[P]."""
        for table, parameters in tables.items():
            for parameter in parameters:
                _check(names.get(id(parameter)), parameter)
            self._names[table] = [names[id(parameter)] for parameter in parameters]
            self.arrays[table] = _move(parameters).numpy()

    def adopt(self, table: str, array: Floats, models: Iterable[nn.Module] = ()) -> None:
        """Make `array` (float32[P]) hold the parameters of a dense table from now on.

        models: existing replicas whose parameters also become views of `array`.
        """
        array[:] = self.arrays[table]
        for model in (self._model, *models):
            _make_views(self.parameters_of(model)[table], torch.from_numpy(array))
        self.arrays[table] = array

    def replica(self) -> nn.Module:
        """Return a new model object over the same parameters and buffers, for use in another
        thread.
        """
        memo: dict[int, object] = {}
        for parameter in self._model.parameters():
            # .data has its own version counter; .detach() would share the counter.
            alias = nn.Parameter(parameter.data, requires_grad=parameter.requires_grad)
            _copy_hooks(parameter, alias)
            memo[id(parameter)] = alias
        for buffer in self._model.buffers():
            memo[id(buffer)] = buffer.data
        return copy.deepcopy(self._model, memo)

    def parameters_of(self, model: nn.Module) -> dict[str, list[nn.Parameter]]:
        """Return the parameters of the model or a replica, by dense table and in order."""
        by_name = dict(model.named_parameters())
        return {table: [by_name[name] for name in names] for table, names in self._names.items()}

    def names_of(self, table: str) -> list[str]:
        """Return the names of the parameters in a dense table, in order."""
        return self._names[table]


class Replicas:
    """Models over the same parameters, one per thread; the first is the model itself. Thread-safe.

    spares_model: whether torch steps the model's own parameters, so that threads must use copies.
    """

    def __init__(self, flat: FlatParameters, model: nn.Module, *, spares_model: bool) -> None:
        self._flat = flat
        self._spares_model = spares_model
        self._lock = threading.Lock()
        self.all: list[nn.Module] = [model]
        """The replicas created so far."""
        self._parameters = {id(model): flat.parameters_of(model)}

    def first(self, count: int) -> list[nn.Module]:
        """Return `count` replicas; repeated calls return the same objects."""
        begin = 1 if self._spares_model and count > 1 else 0
        with self._lock:
            while len(self.all) < begin + count:
                replica = self._flat.replica()
                self._parameters[id(replica)] = self._flat.parameters_of(replica)
                self.all.append(replica)
            return self.all[begin : begin + count]

    def speed_up_layers(self) -> None:
        """Use the faster matrix products in all replicas, until `reset_layers`."""
        for replica in self.all:  # those created later are copies
            fast_layers.speed_up_layers(replica)

    def reset_layers(self) -> None:
        for replica in self.all:
            fast_layers.reset_layers(replica)

    def parameters_of(self, replica: nn.Module) -> dict[str, list[nn.Parameter]]:
        """Return the parameters of one of the replicas, by dense table and in order."""
        return self._parameters[id(replica)]


def take_gradients(parameters: Mapping[str, Sequence[nn.Parameter]]) -> dict[str, Floats]:
    """Return each dense table's flat gradient, float32[P], or {} if no parameter has a gradient.

    Clears the gradients of the parameters. A missing gradient is treated as zero if any other
    parameter of its table has a gradient.
    """
    return {table: join(parts) for table, parts in take_gradient_parts(parameters).items()}


def take_gradient_parts(
    parameters: Mapping[str, Sequence[nn.Parameter]],
) -> dict[str, list[Floats]]:
    """Return each table's gradient as one flat array per parameter, without a copy.

    Missing gradients are handled as in `take_gradients`.
    """
    taken: dict[str, list[Floats]] = {}
    for table, members in parameters.items():
        parts: list[Floats] = []
        without: list[int] = []  # positions of parameters without a gradient
        for place, parameter in enumerate(members):
            gradient = parameter.grad
            if gradient is None:
                without.append(place)
                continue
            # Every torch operator releases the GIL and must reacquire it; NumPy's do not.
            if gradient.requires_grad or gradient.is_sparse:
                gradient = gradient.detach().to_dense()
            parts.append(gradient.numpy().reshape(-1))
            parameter.grad = None
        if parts:
            for place in without:
                parts.insert(place, np.zeros(members[place].numel(), np.float32))
            taken[table] = parts
    return taken


def drop_gradients(parameters: Mapping[str, Sequence[nn.Parameter]]) -> None:
    for members in parameters.values():
        for parameter in members:
            parameter.grad = None


def _check(name: str | None, parameter: nn.Parameter) -> None:
    if name is None:
        raise ConfigError(
            f"the optimizer holds a parameter of shape {list(parameter.shape)} that the model does "
            "not have: create the optimizer from model.parameters()"
        )
    if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
        raise ConfigError(
            f"parameter '{name}' is {parameter.dtype} on {parameter.device}, expected "
            "torch.float32 "
            "on the CPU: call model.float().cpu() first"
        )


def _copy_hooks(parameter: nn.Parameter, alias: nn.Parameter) -> None:
    """Copy the gradient hooks of a parameter to a replica's parameter, which torch does not do."""
    for hook in (parameter._backward_hooks or {}).values():
        alias.register_hook(hook)  # type: ignore[no-untyped-call]
    for hook in (parameter._post_accumulate_grad_hooks or {}).values():
        alias.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]


def _move(parameters: Sequence[nn.Parameter]) -> torch.Tensor:
    """Copy the parameters into one buffer, make each a view of it, and return the buffer."""
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
    _make_views(parameters, flat)
    return flat


def _make_views(parameters: Sequence[nn.Parameter], flat: torch.Tensor) -> None:
    begin = 0
    for parameter in parameters:
        end = begin + parameter.numel()
        parameter.data = flat[begin:end].view(parameter.shape)
        begin = end
