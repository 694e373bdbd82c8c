"""Errors for names of Fluid that are not supported."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from sparsefleet._lazy import lazy_names

__all__ = ["known_names", "unknown_names"]


_INSTEAD = {
    "optimizer.Dpsgd": "noisy updates are not supported; use SGD with a grad_clip",
    "optimizer.PipelineOptimizer": "a program runs on one machine's CPU; use fleet for several",
}
_INSTEAD["optimizer.DpsgdOptimizer"] = _INSTEAD["optimizer.Dpsgd"]


def unknown_names(module: str) -> Callable[[str], Any]:
    """Return a `__getattr__` for a module of Fluid that names what is missing and where to look."""

    def refuse(name: str) -> Any:
        from sparsefleet.fluid.paths import paths

        if f"{module}.{name}".removeprefix("fluid.") in paths():
            return importlib.import_module(f"sparsefleet.{module}.{name}")
        # Names that Python itself looks up are not API.
        instead = _INSTEAD.get(f"{module}.{name}".removeprefix("fluid."))
        hint = f": {instead}" if instead else ""
        listed = "; docs/coming_from_fluid.md lists what is supported"
        hint = "" if name.startswith("__") else hint + listed
        raise AttributeError(f"{module}.{name} is not supported by sparsefleet{hint}")

    return refuse


def known_names(package: str, module: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return such a `__getattr__` that also loads known names on first use."""
    load, refuse = lazy_names(package, homes), unknown_names(module)
    return lambda name: load(name) if name in homes else refuse(name)
