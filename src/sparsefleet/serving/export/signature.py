"""A model's inputs as named flat tensors, and its outputs to export."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sparsefleet.errors import ConfigError
from sparsefleet.nn.lookup import ID_DTYPES

__all__ = ["ModelInput", "ModelInputs", "Targets", "named_outputs"]


@dataclass(frozen=True, slots=True)
class ModelInput:
    """One input of a model: a tensor, or the values and offsets of a ragged input."""

    name: str
    tensors: tuple[Tensor, ...]

    @property
    def is_ragged(self) -> bool:
        return len(self.tensors) == 2


class _Place:
    """A placeholder in a nested structure for a tensor that was taken out."""


_PLACE = _Place()


class ModelInputs:
    """Flattened example inputs, given as a tensor, a tuple or list of arguments, or a dict.

    Arguments may be nested tuples, lists and dicts. A pair of 1-D tensors whose second holds
    offsets is one ragged input. Values that are not tensors are constants, the
    same in every call.

    >>> model = nn.Bilinear(2, 3, 1)
    >>> inputs = ModelInputs(model, (torch.zeros(4, 2), torch.zeros(4, 3)))
    >>> [item.name for item in inputs.items]
    ['input1', 'input2']
    >>> inputs.call(model, inputs.tensors).shape
    torch.Size([4, 1])
    """

    def __init__(self, model: nn.Module, example: Any) -> None:
        if isinstance(example, Mapping):
            named = {str(name): value for name, value in example.items()}
            self._by_name = True
        else:
            values = list(example) if isinstance(example, (tuple, list)) else [example]
            named = dict(zip(_argument_names(model, len(values)), values, strict=True))
            self._by_name = False
        self.items: list[ModelInput] = []
        """The inputs in call order."""
        self._template = {name: self._take(name, value) for name, value in named.items()}
        if not self.items:
            raise ConfigError(
                "the example inputs contain no tensor; pass a batch in the form that the model "
                "takes"
            )
        _check_batch(self.items)

    @property
    def tensors(self) -> list[Tensor]:
        """Return all tensors as a flat list."""
        return [tensor for item in self.items for tensor in item.tensors]

    def call(self, model: nn.Module, tensors: Sequence[Tensor]) -> Any:
        """Call the model with these tensors, arranged in the same structure as the example."""
        left = iter(tensors)
        named = {name: _fill(part, left) for name, part in self._template.items()}
        return model(**named) if self._by_name else model(*named.values())

    def _take(self, name: str, value: Any) -> Any:
        """Return `value` with placeholders for its tensors; append the tensors to `self.items`."""
        if isinstance(value, np.ndarray):
            value = torch.from_numpy(np.array(value))
        if isinstance(value, Tensor):
            self.items.append(ModelInput(name, (self._own(value),)))
            return _PLACE
        if isinstance(value, tuple) and _is_ragged(value):
            values, offsets = (torch.as_tensor(part) for part in value)
            self.items.append(ModelInput(name, (self._own(values), self._own(offsets.long()))))
            return _like(value, [_PLACE, _PLACE])
        if isinstance(value, (tuple, list)):
            parts = [self._take(f"{name}.{index}", part) for index, part in enumerate(value)]
            return _like(value, parts)
        if isinstance(value, Mapping):
            return {key: self._take(f"{name}.{key}", part) for key, part in value.items()}
        return value

    def _own(self, tensor: Tensor) -> Tensor:
        """Return the tensor, or a copy if an input already uses it.

        `torch.export` would merge inputs that are the same tensor.
        """
        return tensor.clone() if any(tensor is other for other in self.tensors) else tensor


def _argument_names(model: nn.Module, count: int) -> list[str]:
    """Return the names of `forward`'s parameters, with numbers for those in `*arguments`."""
    names = []
    for parameter in inspect.signature(model.forward).parameters.values():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
        elif parameter.kind is parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}_{index}" for index in range(count - len(names))]
    if len(names) < count:
        raise ConfigError(
            f"{type(model).__name__}.forward takes {len(names)} inputs ({', '.join(names)}), but "
            f"the example has {count}; if the batch includes labels, leave them out"
        )
    return names[:count]


def _is_ragged(value: tuple[Any, ...]) -> bool:
    if len(value) != 2 or not all(isinstance(part, (Tensor, np.ndarray)) for part in value):
        return False
    values, offsets = (torch.as_tensor(part) for part in value)
    if values.dim() != 1 or offsets.dim() != 1 or offsets.dtype not in ID_DTYPES:
        return False
    if not len(offsets) or int(offsets[0]) != 0 or int(offsets[-1]) > len(values):
        return False
    return bool((offsets.diff() >= 0).all())


def _check_batch(items: list[ModelInput]) -> None:
    for item in items:
        tensor = item.tensors[-1]
        if tensor.dim() and len(tensor) < 2:
            raise ConfigError(
                f"example input '{item.name}' has a batch size of {len(tensor)}, expected at least "
                "2, so that the batch dimension can be identified"
            )


def _like(nest: Any, parts: list[Any]) -> Any:
    """Return the parts in a container of the same type as `nest`: a tuple, named tuple or list."""
    return type(nest)(*parts) if hasattr(nest, "_fields") else type(nest)(parts)


def _fill(part: Any, tensors: Iterator[Tensor]) -> Any:
    """Return the nested structure with its placeholders replaced by tensors, in order."""
    if part is _PLACE:
        return next(tensors)
    if isinstance(part, (tuple, list)):
        return _like(part, [_fill(item, tensors) for item in part])
    if isinstance(part, dict):
        return {key: _fill(item, tensors) for key, item in part.items()}
    return part


TargetsLike = str | Sequence[str] | Callable[[Any], Any] | None


class Targets:
    """Selects the targets of a model when the model is called.

    None selects all outputs. A name selects the output with that name, or else the output of the
    submodule at that path. If `wanted` is a function, the targets are its result for the
    model's output.

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    >>> targets = Targets(model, ["output", "0"])
    >>> list(targets.run(lambda: model(torch.zeros(4, 2))))
    ['output', '0']
    """

    def __init__(self, model: nn.Module, wanted: TargetsLike) -> None:
        self._function = wanted if callable(wanted) else None
        self._names: list[str] | None = None
        if wanted is not None and not callable(wanted):
            self._names = [wanted] if isinstance(wanted, str) else list(wanted)
            if not self._names or not all(isinstance(name, str) for name in self._names):
                raise ConfigError(
                    f"targets must be names of outputs or modules, or a function; got {wanted!r}"
                )
        self._modules = {
            path: module
            for path, module in model.named_modules()
            if path and path in (self._names or ())
        }

    def run(self, call: Callable[[], Any]) -> dict[str, Tensor]:
        """Run `call`, which calls the model once, and return the targets by name."""
        seen: dict[str, Any] = {}
        with _watching(self._modules, seen):
            output = call()
        if self._function is not None:
            return named_outputs(self._function(output))
        outputs = named_outputs(output)
        if self._names is None:
            return outputs
        return {name: self._pick(name, outputs, seen) for name in self._names}

    def _pick(self, name: str, outputs: dict[str, Tensor], seen: dict[str, Any]) -> Tensor:
        if name in outputs:
            return outputs[name]
        found = seen.get(name)
        if isinstance(found, Tensor):
            return found
        if name in seen:
            raise ConfigError(
                f"target '{name}' is a module that returns a {type(found).__name__}, expected a "
                "tensor; pass a function that selects what you want from the model's output"
            )
        if name in self._modules:
            raise ConfigError(f"target '{name}' is a module that the model does not call")
        raise ConfigError(
            f"target '{name}' is neither an output of the model ({', '.join(outputs)}) nor the "
            "path of a module in it"
        )


def named_outputs(output: Any) -> dict[str, Tensor]:
    """Return outputs by name: dict keys, named tuple fields, or "0", "1", ...

    A single tensor has the name "output".
    """
    if isinstance(output, Tensor):
        return {"output": output}
    if isinstance(output, Mapping):
        found = {str(name): value for name, value in output.items()}
    elif isinstance(output, tuple) and hasattr(output, "_fields"):
        found = dict(zip(output._fields, output, strict=True))
    elif dataclasses.is_dataclass(output) and not isinstance(output, type):
        found = {f.name: getattr(output, f.name) for f in dataclasses.fields(output)}
    elif isinstance(output, (tuple, list)):
        found = {str(index): value for index, value in enumerate(output)}
    else:
        found = {}
    tensors = {name: value for name, value in found.items() if isinstance(value, Tensor)}
    if not tensors:
        raise ConfigError(
            f"the model returns a {type(output).__name__} without a tensor; choose what to export "
            "with targets="
        )
    return tensors


@contextmanager
def _watching(modules: Mapping[str, nn.Module], seen: dict[str, Any]) -> Iterator[None]:
    """Record the outputs of these modules in `seen` inside the `with` block."""

    def keep(path: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, arguments: Any, output: Any) -> None:
            del module, arguments
            seen[path] = output

        return hook

    with ExitStack() as hooks:
        for path, module in modules.items():
            handle = module.register_forward_hook(keep(path))
            hooks.callback(handle.remove)
        yield
