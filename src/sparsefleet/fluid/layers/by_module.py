"""Fluid's modules of layers. Here, each module contains every name in `fluid.layers`."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from sparsefleet.fluid.operators import branches, collective

__all__ = ["add_modules", "public_names"]

_MODULES = (
    "collective",
    "control_flow",
    "detection",
    "device",
    "io",
    "learning_rate_scheduler",
    "loss",
    "metric_op",
    "nn",
    "ops",
    "rnn",
    "sequence_lod",
    "tensor",
)


_OWN_NAMES: dict[str, Any] = {
    "collective": collective,  # Fluid programs call the private `_c_allreduce`
    "control_flow": branches,
}
"""Maps a module to the module that defines the names missing from `fluid.layers`."""


class _LayerModule(ModuleType):
    def __init__(self, name: str, layers: ModuleType) -> None:
        super().__init__(name, "Layers, under the name of Fluid's module.")
        self._same_name = getattr(layers, name.rpartition(".")[2], None)
        self._layers = layers
        self.__spec__ = ModuleSpec(name, None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the layer of the same name, which `import fluid.layers.rnn` would otherwise hide."""
        if not callable(self._same_name):
            raise TypeError(f"module {self.__name__!r} is not callable")
        return self._same_name(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":
            return self._layers.__all__
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if hasattr(self._layers, name):
            return getattr(self._layers, name)
        own = _OWN_NAMES.get(self.__name__.rpartition(".")[2])
        if own is not None and hasattr(own, name):
            return getattr(own, name)
        return getattr(self._layers, name)


def add_modules(package: str) -> tuple[str, ...]:
    """Make `fluid.layers.nn` and the other modules importable; return their names.

    >>> from sparsefleet import fluid
    >>> fluid.layers.tensor.concat is fluid.layers.concat
    True
    """
    layers = sys.modules[package]
    for name in _MODULES:
        module = _LayerModule(f"{package}.{name}", layers)
        sys.modules[module.__name__] = module
        if not hasattr(layers, name):  # `fluid.layers.rnn` is the layer
            setattr(layers, name, module)
    return _MODULES


def public_names(names: dict[str, Any]) -> list[str]:
    """Return the names of a module's layers, excluding modules and private names.

    >>> public_names({"fc": public_names, "_fc": public_names, "sys": sys})
    ['fc']
    """
    return sorted(
        name
        for name, value in names.items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    )
