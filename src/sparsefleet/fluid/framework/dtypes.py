"""Element types, with one canonical name for all spellings."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["DTYPES", "ElementType", "UnknownDtypeError", "dtype_name"]


class ElementType(str):
    """The name of a type; `int()` returns its number in Fluid's files.

    >>> ElementType("int64") == "int64", int(ElementType("int64"))
    (True, 3)
    """

    def __int__(self) -> int:
        return _NUMBERS[str(self)]


_NUMBERS = {
    "bool": 0,
    "int16": 1,
    "int32": 2,
    "int64": 3,
    "float16": 4,
    "float32": 5,
    "float64": 6,
    "uint8": 20,
    "int8": 21,
}

DTYPES = tuple(ElementType(name) for name in sorted(_NUMBERS))
"""The types that a variable can hold in Fluid."""

_NAMES = {str(name): name for name in DTYPES}


class UnknownDtypeError(TypeError, ValueError):
    """Raised for an unknown element type. Fluid raises either base, depending on the layer."""


def dtype_name(dtype: Any) -> ElementType:
    """Return the name of a type given as a string or as a NumPy, torch or Python type.

    >>> dtype_name("int64"), dtype_name(np.float32), dtype_name(np.dtype("uint8")), dtype_name(bool)
    ('int64', 'float32', 'uint8', 'bool')
    """
    if isinstance(dtype, ElementType):
        return dtype
    name = _written_name(dtype)
    if name not in _NAMES:
        raise UnknownDtypeError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    return _NAMES[name]


def _written_name(dtype: Any) -> str:
    text = str(dtype)
    if text.startswith("torch."):  # recognised without loading torch
        return text.removeprefix("torch.")
    if dtype is None:  # NumPy would guess the type
        return text
    try:
        return str(np.dtype(dtype).name)
    except TypeError:
        return text
