"""Names that Python and NumPy had when Fluid scripts were written."""

from __future__ import annotations

import collections
import collections.abc
import functools
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from sparsefleet._core import convert_one_element_arrays

__all__ = ["restore_numpy", "restore_python"]


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

    An array of one element converts to a number whatever its number of dimensions. `numpy.array` of
    lists of unequal lengths is an array of objects. Numbers are shown without their type.
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
    """Add what Python removed: `time.clock`, and abstract classes in `collections`."""
    _add(time, "clock", time.process_time)
    for name in collections.abc.__all__:
        _add(collections, name, getattr(collections.abc, name))


def _add(owner: Any, name: str, value: Any) -> None:
    if not hasattr(owner, name):
        setattr(owner, name, value)
