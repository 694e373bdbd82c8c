"""Modules of Fluid that hold layers: here they all hold the names of `fluid.layers`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

__all__ = ["names_of", "public_names"]


def names_of(module: str) -> Callable[[str], Any]:
    """A `__getattr__` for such a module.

    >>> from sparsefleet import fluid
    >>> fluid.layers.tensor.concat is fluid.layers.concat
    True
    """

    def find(name: str) -> Any:
        layers = importlib.import_module("sparsefleet.fluid.layers")
        if name == "__all__":
            return layers.__all__
        if name.startswith("__"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return getattr(layers, name)

    return find


def public_names(names: dict[str, Any]) -> list[str]:
    """Those of a module that are layers: no modules, and none that begin with `_`.

    >>> public_names({"fc": public_names, "_fc": public_names, "importlib": importlib})
    ['fc']
    """
    return sorted(
        name
        for name, value in names.items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    )
