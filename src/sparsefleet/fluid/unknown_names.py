"""Errors for names of Fluid that are not supported."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from sparsefleet._lazy import lazy_names

__all__ = ["known_names", "unknown_names"]


def unknown_names(module: str) -> Callable[[str], Any]:
    """Return a `__getattr__` for a module of Fluid that names what is missing and where to look."""

    def refuse(name: str) -> Any:
        from sparsefleet.fluid.paths import paths

        if f"{module}.{name}".removeprefix("fluid.") in paths():
            return importlib.import_module(f"sparsefleet.{module}.{name}")
        # Names that Python itself looks up are not API.
        hint = (
            "" if name.startswith("__") else "; docs/coming_from_fluid.md lists what is supported"
        )
        raise AttributeError(f"{module}.{name} is not supported by sparsefleet{hint}")

    return refuse


def known_names(package: str, module: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return such a `__getattr__` that also loads known names on first use."""
    load, refuse = lazy_names(package, homes), unknown_names(module)
    return lambda name: load(name) if name in homes else refuse(name)
