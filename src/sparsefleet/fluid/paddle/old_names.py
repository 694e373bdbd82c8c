"""Names that Python and NumPy had when Fluid scripts were written."""

from __future__ import annotations

import collections
import collections.abc
import functools
import time
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["OneValueArray", "restore_numpy", "restore_python"]


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


class OneValueArray(np.ndarray[Any, Any]):
    """An array of one value that `float` and `"%f"` accept whatever its number of dimensions.

    >>> "%.1f" % np.array([2.0]).view(OneValueArray)
    '2.0'
    """

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __repr__(self) -> str:
        return repr(self.view(np.ndarray))

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        """Wrap a result: a number, a single value, or an ordinary array."""
        del context, return_scalar
        if array.ndim == 0:
            return array[()]
        return array.view(OneValueArray if array.size == 1 else np.ndarray)


def restore_numpy() -> None:
    """Add names that NumPy removed, and restore the old results of `numpy.array`.

    Its arrays (fetched values included) convert to a number if they hold one; lists of unequal
    lengths become an array of objects. Numbers are shown without their type.
    """
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
            made = make(*arguments, **settings)
        except ValueError as error:
            if len(arguments) != 1 or settings or "inhomogeneous" not in str(error):
                raise
            made = make(*arguments, dtype=object)
        if type(made) is np.ndarray and made.size == 1 and made.ndim:
            return made.view(OneValueArray)
        return made

    return array


def restore_python() -> None:
    """Add what Python removed: `time.clock`, and abstract classes in `collections`."""
    _add(time, "clock", time.process_time)
    for name in collections.abc.__all__:
        _add(collections, name, getattr(collections.abc, name))


def _add(owner: Any, name: str, value: Any) -> None:
    if not hasattr(owner, name):
        setattr(owner, name, value)
