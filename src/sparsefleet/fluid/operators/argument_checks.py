"""The argument types that layers accept, as in Fluid."""

from __future__ import annotations

import csv
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from sparsefleet.fluid.framework.dtypes import dtype_name
from sparsefleet.fluid.framework.variable import ARRAY, Variable

__all__ = [
    "check_arguments",
    "check_dtype",
    "check_type",
    "check_variable_and_dtype",
    "convert_dtype",
]

_TABLE = Path(__file__).parent / "argument_types.csv"
_TYPES: dict[str, Any] = {
    "None": type(None),
    "Variable": Variable,
    "bool": bool,
    "float": float,
    "int": int,
    "list": list,
    "ndarray": np.ndarray,
    "str": str,
    "tuple": tuple,
}

Rule = tuple[str, str, tuple[str, ...]]
"""Maps each argument to its kind of check and the allowed values.

variable: a Variable with one of the dtypes. elements: one such Variable, or a list of them. type: a
value of one of the types. dtype: one of the dtypes. With a `?`, other types and None are also
accepted.
"""


@cache
def _rules() -> dict[str, list[Rule]]:
    found: dict[str, list[Rule]] = {}
    with open(_TABLE, encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            rule = (row["argument"], row["kind"], tuple(row["allowed"].split()))
            found.setdefault(row["layer"], []).append(rule)
    return found


def check_arguments(layer: str, arguments: Mapping[str, Any]) -> None:
    """Raise TypeError for an argument of a type that the layer does not accept.

    >>> check_arguments("transpose", {"perm": (0, 1)})
    Traceback (most recent call last):
    TypeError: perm must be of type list, got (0, 1)
    """
    for name, kind, allowed in _rules().get(layer, ()):
        if name not in arguments:
            continue
        value = arguments[name]
        if kind == "elements":
            for item in value if isinstance(value, (list, tuple)) else [value]:
                _check_variable(name, item, allowed)
        elif kind == "variable":
            _check_variable(name, value, allowed)
        elif kind == "variable?":
            if isinstance(value, Variable):
                _check_variable(name, value, allowed)
        elif kind.startswith("dtype"):
            if value is not None and dtype_name(value) not in allowed:
                raise TypeError(f"{name} must be {' or '.join(allowed)}, got {value!r}")
        elif (value is not None or not kind.endswith("?")) and not isinstance(
            value, tuple(_TYPES[one] for one in allowed)
        ):
            raise TypeError(f"{name} must be of type {' or '.join(allowed)}, got {value!r}")


def _check_variable(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if not isinstance(value, Variable):
        raise TypeError(f"{name} must be a Variable in the program, got {value!r}")
    if allowed and value.dtype not in allowed and value.type != ARRAY:
        raise TypeError(f"{name} must have the dtype {' or '.join(allowed)}, got {value.dtype}")


def convert_dtype(dtype: Any) -> str:
    """Return the name of an element type.

    >>> convert_dtype(np.float32)
    'float32'
    """
    return dtype_name(dtype)


def check_type(
    input: Any, input_name: str, expected_type: Any, op_name: str, extra_message: str = ""
) -> None:
    """Raise TypeError unless a layer's argument has one of these types."""
    if not isinstance(input, expected_type):
        raise TypeError(
            f"{op_name}: {input_name} must be of type {expected_type}, got {type(input)}. "
            f"{extra_message}"
        )


def check_dtype(
    input_dtype: Any,
    input_name: str,
    expected_dtype: str | Collection[str],
    op_name: str,
    extra_message: str = "",
) -> None:
    """Raise TypeError unless an element type is one of these."""
    allowed = [expected_dtype] if isinstance(expected_dtype, str) else expected_dtype
    if dtype_name(input_dtype) not in allowed:
        raise TypeError(
            f"{op_name}: {input_name} must have the dtype {' or '.join(allowed)}, got "
            f"{dtype_name(input_dtype)}. {extra_message}"
        )


def check_variable_and_dtype(
    input: Any,
    input_name: str,
    expected_dtype: str | Collection[str],
    op_name: str,
    extra_message: str = "",
) -> None:
    """Raise TypeError unless a layer's argument is a Variable with one of these element types."""
    check_type(input, input_name, Variable, op_name, extra_message)
    check_dtype(input.dtype, input_name, expected_dtype, op_name, extra_message)
