"""Checks arrays from users and turns them into contiguous buffers for native code.

In shapes, N is the number of keys and D the row width.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsefleet.errors import ShapeError

Keys = NDArray[np.uint64]
Floats = NDArray[np.float32]

_KEY = np.dtype(np.uint64)
_KEY_DTYPES = (np.dtype(np.int64), _KEY)
_FLOAT = np.dtype(np.float32)


def as_keys(table: str, keys: Any) -> Keys:
    """Return the keys as uint64, keeping their shape; int64 is reinterpreted, not converted.

    Contiguous int64 or uint64 NumPy arrays and CPU tensors are not copied.
    """
    # Not `is`: arrays from native code may have a different NumPy type of this size.
    if type(keys) is np.ndarray and keys.dtype == _KEY and keys.flags.c_contiguous:
        return keys
    array = _as_array(table, "keys", keys)
    if array.dtype not in _KEY_DTYPES:
        if array.size == 0 and not hasattr(keys, "dtype"):
            return np.empty(array.shape, np.uint64)  # an empty list has no meaningful dtype
        raise ShapeError(
            f"table '{table}': keys must be int64 or uint64, got {array.dtype}; "
            "convert them with .astype(np.int64) or .long()"
        )
    return _contiguous(array).view(np.uint64)


def as_values(table: str, what: str, values: Any, shape: tuple[int, ...]) -> Floats:
    """Return the values as float32, after checking the shape. what: their name in errors."""
    if _is_ready(values) and values.shape == shape:
        return values  # type: ignore[no-any-return]
    array = _as_array(table, what, values)
    if array.dtype != _FLOAT:
        hint = (
            "None: has backward() been called?"
            if values is None
            else f"{array.dtype}; convert with .astype(np.float32) or .float()"
        )
        raise ShapeError(f"table '{table}': {what} must be float32, got {hint}")
    if array.shape != shape:
        raise ShapeError(f"table '{table}': {what} must have shape {shape}, got {array.shape}")
    return _contiguous(array)


def as_parts(table: str, gradient: Any, size: int) -> list[Floats]:
    """Return a dense gradient as a list of flat arrays; such a list is returned unchanged."""
    if not isinstance(gradient, list) or not gradient:
        return [as_values(table, "gradient", gradient, (size,))]
    found, is_ready = 0, True
    for part in gradient:  # runs in every step, so avoids a function call for each part
        if not isinstance(part, np.ndarray) or part.ndim != 1:
            return [as_values(table, "gradient", gradient, (size,))]
        is_ready = is_ready and part.dtype is _FLOAT and part.flags.c_contiguous
        found += len(part)
    if found != size:
        raise ShapeError(
            f"table '{table}': gradient must have shape ({size},), got parts with {found} elements "
            "in total"
        )
    if is_ready:
        return gradient
    return [as_values(table, "a part of the gradient", part, part.shape) for part in gradient]


def _is_ready(values: Any) -> bool:
    """Return whether native code can use the values without conversion."""
    return type(values) is np.ndarray and values.dtype is _FLOAT and values.flags.c_contiguous


def as_output(table: str, out: Any, shape: tuple[int, ...]) -> Floats:
    """Return ``out`` if values can be written directly into it, or a new array if it is None."""
    if out is None:
        return np.empty(shape, np.float32)
    array = _as_array(table, "out", out)
    if array.dtype != _FLOAT or array.shape != shape:
        raise ShapeError(
            f"table '{table}': out must be float32 of shape {shape}, "
            f"got {array.dtype} of shape {array.shape}"
        )
    if not (array.flags.c_contiguous and array.flags.writeable):
        raise ShapeError(
            f"table '{table}': out must be contiguous and writable; pass a new NumPy array"
        )
    return array


def _as_array(table: str, what: str, given: Any) -> NDArray[Any]:
    try:
        return np.asarray(given)
    except (TypeError, ValueError, RuntimeError) as error:  # ragged lists, bfloat16, live gradients
        raise ShapeError(f"table '{table}': {what} cannot be read as an array: {error}") from error


def _contiguous(array: NDArray[Any]) -> NDArray[Any]:
    """Return a contiguous array; unlike np.ascontiguousarray, keep a shape of ()."""
    return array if array.flags.c_contiguous else array.copy()
