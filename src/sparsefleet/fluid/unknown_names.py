"""Names of Fluid that are not here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sparsefleet._lazy import lazy_names

__all__ = ["known_names", "unknown_names"]


def unknown_names(module: str) -> Callable[[str], Any]:
    """A `__getattr__` for a module of Fluid: says which name is missing, and where to look."""

    def refuse(name: str) -> Any:
        # Names that Python itself asks modules for are no API.
        hint = "" if name.startswith("__") else "; docs/coming_from_fluid.md lists what is there"
        raise AttributeError(f"{module}.{name} is not supported by sparsefleet{hint}")

    return refuse


def known_names(package: str, module: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """As `unknown_names`, with names that are loaded at first use."""
    load, refuse = lazy_names(package, homes), unknown_names(module)
    return lambda name: load(name) if name in homes else refuse(name)
