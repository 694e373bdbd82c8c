"""Modules under a second name."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import CodeType, ModuleType
from typing import Any, cast

__all__ = ["AliasFinder"]


class AliasFinder(MetaPathFinder):
    """Finds `package.name.rest` as the very module `homes[name].rest`, not as a second copy.

    homes: name -> the module it stands for; names that are no modules of their own are not found.

    >>> finder = AliasFinder("old", {"json": "json"})
    >>> finder.find_spec("old.json.decoder").origin == find_spec("json.decoder").origin
    True
    """

    def __init__(self, package: str, homes: Mapping[str, str]) -> None:
        self._package = package
        self._homes = homes

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        package, _, below = fullname.partition(".")
        if package != self._package or not below:
            return None
        name, _, rest = below.partition(".")
        home = self._homes.get(name, "")
        found = None
        if home.endswith(f".{name}") or home == name:
            real = f"{home}.{rest}" if rest else home
            found = _spec_of(real)
        if found is None:
            raise ModuleNotFoundError(
                f"{fullname} is not supported by sparsefleet; docs/coming_from_fluid.md lists "
                "what is there",
                name=fullname,
            )
        return ModuleSpec(
            fullname,
            _AliasLoader(real),
            origin=found.origin,
            is_package=found.submodule_search_locations is not None,
        )


class _AliasLoader(InspectLoader):
    """Puts the module of another name into sys.modules; its code is asked for by `python -m`."""

    def __init__(self, real: str) -> None:
        self._real = real

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = importlib.import_module(self._real)

    def get_source(self, fullname: str) -> str | None:
        del fullname
        return cast("str | None", _loader_of(self._real).get_source(self._real))

    def get_code(self, fullname: str) -> CodeType | None:
        del fullname
        return cast("CodeType | None", _loader_of(self._real).get_code(self._real))

    def is_package(self, fullname: str) -> bool:
        del fullname
        return bool(_loader_of(self._real).is_package(self._real))


def _spec_of(name: str) -> ModuleSpec | None:
    try:
        return find_spec(name)
    except ModuleNotFoundError:  # a parent is missing, or is no package
        return None


def _loader_of(name: str) -> Any:
    """Any loader with code: that of an editable install is of a class of its own."""
    spec = find_spec(name)
    if spec is None or not hasattr(spec.loader, "get_code"):
        raise ImportError(f"{name} has no code that can be run", name=name)
    return spec.loader
