"""Element types: one canonical name for each spelling."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["DTYPES", "dtype_name"]

DTYPES = (
    "bool",
    "float16",
    "float32",
    "float64",
    "int16",
    "int32",
    "int64",
    "int8",
    "uint8",
)
"""What a variable can hold: Fluid's types."""


def dtype_name(dtype: Any) -> str:
    """Return the name of a type given as a string or as a NumPy, torch or Python type.

    >>> dtype_name("int64"), dtype_name(np.float32), dtype_name(np.dtype("uint8")), dtype_name(bool)
    ('int64', 'float32', 'uint8', 'bool')
    """
    name = _written_name(dtype)
    if name not in DTYPES:
        raise TypeError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    return name


def _written_name(dtype: Any) -> str:
    text = str(dtype)
    if text.startswith("torch."):  # recognised without loading torch
        return text.removeprefix("torch.")
    if dtype is None:  # NumPy would guess
        return text
    try:
        return str(np.dtype(dtype).name)
    except TypeError:
        return text
