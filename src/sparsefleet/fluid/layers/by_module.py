"""Modules of Fluid that hold layers: here they all hold the names of `fluid.layers`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

__all__ = ["names_of"]


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
