"""Helpers for loading modules when one of their names or functions is first used."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["LazyFunction", "lazy_names", "listing"]


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a `__getattr__` for `package`.

    homes: maps each name to the module that defines it, or to the module itself if its path ends
        with that name.
    """

    def load(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(home)
        return module if home.endswith(f".{name}") else getattr(module, name)

    return load


def listing(names: Sequence[str]) -> Callable[[], list[str]]:
    """Return a `__dir__` for a package that also lists names that are not loaded yet."""
    return lambda: sorted(names)


class LazyFunction:
    """A function whose module is imported on the first call."""

    def __init__(self, module: str, name: str) -> None:
        self._module = module
        self._name = name

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return getattr(importlib.import_module(self._module), self._name)(*arguments, **options)
