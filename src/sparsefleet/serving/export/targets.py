"""Select the outputs of a model to export."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from sparsefleet.errors import ConfigError

__all__ = ["Targets", "named_outputs"]

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
