"""The contents of the package `paddle`, and how it is imported."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

from sparsefleet.fluid.executor.fetch_printing import print_as_fluid
from sparsefleet.fluid.paddle.old_names import restore_numpy, restore_python
from sparsefleet.fluid.paths import AliasLoader
from sparsefleet.fluid.unknown_names import known_names

__all__ = ["AliasFinder", "enable_static", "provide"]

_HOMES = {
    "__version__": "sparsefleet.fluid.paddle.version",
    "batch": "sparsefleet.fluid.paddle.reader",
    "compat": "sparsefleet.fluid.paddle.compat",
    "dataset": "sparsefleet.dataset",
    "distributed": "sparsefleet.fluid.paddle.distributed",
    "enable_static": "sparsefleet.fluid.paddle.paddle_package",
    "fluid": "sparsefleet.fluid",
    "reader": "sparsefleet.fluid.paddle.reader",
    "version": "sparsefleet.fluid.paddle.version",
}

__getattr__ = known_names("paddle", "paddle", _HOMES)


def provide(package: str) -> None:
    """Make `import paddle.fluid...`, old names of Python and NumPy, and Fluid's logs work.

    package: the name under which the package is imported; any name other than "paddle" is a tool
    scanning all modules, and nothing is done.
    """
    if package != "paddle":
        return
    if not any(isinstance(finder, AliasFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, AliasFinder("paddle", _HOMES))
    restore_python()
    restore_numpy()
    print_as_fluid()


def enable_static() -> None:
    """Do nothing: layers always add operators to programs."""


class AliasFinder(MetaPathFinder):
    """Finds `package.name.rest` as the module `homes[name].rest` itself, not as a copy.

    homes: name -> the module it stands for; names that are not modules are not found.

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
                "what is supported",
                name=fullname,
            )
        return ModuleSpec(
            fullname,
            AliasLoader(real),
            origin=found.origin,
            is_package=found.submodule_search_locations is not None,
        )


def _spec_of(name: str) -> ModuleSpec | None:
    try:
        return find_spec(name)
    except ModuleNotFoundError:  # a parent is missing or not a package
        return None
