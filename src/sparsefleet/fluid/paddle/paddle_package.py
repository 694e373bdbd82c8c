"""The contents of the package `paddle`, and how it is imported."""

from __future__ import annotations

import collections
import collections.abc
import functools
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import numpy as np

from sparsefleet._core import convert_one_element_arrays
from sparsefleet.fluid.executor.fetch_printing import print_as_fluid
from sparsefleet.fluid.paths import AliasLoader, known_names

__all__ = ["AliasFinder", "enable_static", "provide", "restore_numpy", "restore_python"]


def _random_integers(low: int, high: int | None = None, size: Any = None) -> Any:
    first, last = (1, low) if high is None else (low, high)
    return np.random.randint(first, last + 1, size)


def _as_float_array(values: Any, dtype: Any = np.float64) -> Any:
    kind = np.dtype(dtype)
    return np.asarray(values, kind if np.issubdtype(kind, np.inexact) else np.float64)


_NAMES: dict[str, Any] = {
    "Inf": np.inf,
    "Infinity": np.inf,
    "NaN": np.nan,
    "NINF": -np.inf,
    "PINF": np.inf,
    "alltrue": np.all,
    "asfarray": _as_float_array,
    "asscalar": np.ndarray.item,
    "bool": bool,
    "complex": complex,
    "complex_": np.complex128,
    "cumproduct": np.cumprod,
    "float": float,
    "float_": np.float64,
    "infty": np.inf,
    "int": int,
    "int0": np.intp,
    "long": int,
    "object": object,
    "product": np.prod,
    "row_stack": np.vstack,
    "sometrue": np.any,
    "str": str,
    "string_": np.bytes_,
    "unicode": str,
    "unicode_": np.str_,
}

_RANDOM_NAMES = {"random_integers": _random_integers}


def restore_numpy() -> None:
    """Add names that NumPy removed, and restore old behavior.

    A one-element array with any number of dimensions converts to a number, `numpy.array` returns an
    array of objects for lists of unequal length, and numbers are shown without their type.
    """
    convert_one_element_arrays(np.ndarray)
    np.set_printoptions(legacy="1.25")
    for owner, names in ((np, _NAMES), (np.random, _RANDOM_NAMES)):
        for name, value in names.items():
            if name not in vars(owner):  # hasattr would trigger a warning for some of them
                setattr(owner, name, value)
    if not hasattr(np.array, "__wrapped__"):
        np.array = _old_array(np.array)


def _old_array(make: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(make)
    def array(*arguments: Any, **settings: Any) -> Any:
        try:
            return make(*arguments, **settings)
        except ValueError as error:
            if len(arguments) != 1 or settings or "inhomogeneous" not in str(error):
                raise
            return make(*arguments, dtype=object)

    return array


def restore_python() -> None:
    """Add names that Python removed: `time.clock`, and the abstract classes in `collections`."""
    _add(time, "clock", time.process_time)
    for name in collections.abc.__all__:
        _add(collections, name, getattr(collections.abc, name))


def _add(owner: Any, name: str, value: Any) -> None:
    if not hasattr(owner, name):
        setattr(owner, name, value)


_HOMES = {
    "__version__": "sparsefleet.fluid.paddle.version",
    "batch": "sparsefleet.fluid.paddle.reader",
    "check_import_scipy": "sparsefleet.fluid.paddle.check_import_scipy",
    "compat": "sparsefleet.fluid.paddle.compat",
    "dataset": "sparsefleet.dataset",
    "distributed": "sparsefleet.fluid.paddle.distributed",
    "enable_static": "sparsefleet.fluid.paddle.paddle_package",
    "fluid": "sparsefleet.fluid",
    "reader": "sparsefleet.fluid.paddle.reader",
    "utils": "sparsefleet.fluid.paddle.utils",
    "version": "sparsefleet.fluid.paddle.version",
}

__getattr__ = known_names("paddle", "paddle", _HOMES)


def provide(package: str) -> None:
    """Enable `import paddle.fluid...`, removed Python and NumPy names, and logs as in Fluid.

    package: the name that the package is imported under; any name other than "paddle" means that a
        tool is scanning all modules, and nothing is done.
    """
    if package != "paddle":
        return
    if not any(isinstance(finder, AliasFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, AliasFinder("paddle", _HOMES))
        sys.modules.setdefault("paddle.batch", _module_of_batch())
    restore_python()
    restore_numpy()
    print_as_fluid()


def _module_of_batch() -> ModuleType:
    """Return the module `paddle.batch`, which holds the function of the same name.

    It is registered in advance, because a module that is found later would hide the function.
    """
    made = ModuleType("paddle.batch")
    vars(made)["__getattr__"] = known_names(
        "paddle.batch", "paddle.batch", {"batch": _HOMES["batch"]}
    )
    return made


def enable_static() -> None:
    """Do nothing, since layers always add operators to programs."""


class AliasFinder(MetaPathFinder):
    """Makes `import package.name.rest` return the module `homes[name].rest` itself, not a copy.

    homes: a dict from name to the module it stands for; names that are not modules are not found.

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
                f"{fullname} is not supported by sparsefleet; docs/coming_from_fluid.md lists what "
                "is supported",
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
