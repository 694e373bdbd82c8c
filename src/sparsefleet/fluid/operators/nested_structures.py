"""Nested lists, tuples and dicts of variables, under the names in Fluid's `layers.utils`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sparsefleet.fluid.framework.variable import Variable
from sparsefleet.fluid.operators.blocks import flatten, map_structure
from sparsefleet.fluid.operators.blocks import pack_like as pack_sequence_as

__all__ = [
    "assert_same_structure",
    "convert_shape_to_list",
    "convert_to_list",
    "copy_mutable_vars",
    "flatten",
    "hold_mutable_vars",
    "is_sequence",
    "map_structure",
    "pack_sequence_as",
]


def is_sequence(seq: Any) -> bool:
    """Return whether the value is a list, tuple or dict.

    >>> is_sequence([1]), is_sequence("text")
    (True, False)
    """
    return isinstance(seq, (Mapping, Sequence)) and not isinstance(seq, (str, bytes))


def assert_same_structure(nest1: Any, nest2: Any, check_types: bool = True) -> None:
    """Raise ValueError if two structures differ, or TypeError if their types differ.

    >>> assert_same_structure([1, (2, 3)], [4, (5, 6)])
    """
    if is_sequence(nest1) != is_sequence(nest2):
        raise ValueError(f"structures differ: {nest1!r} and {nest2!r}")
    if not is_sequence(nest1):
        return
    if check_types and type(nest1) is not type(nest2):
        raise TypeError(
            f"structures differ: {type(nest1).__name__} {nest1!r} and "
            f"{type(nest2).__name__} {nest2!r}"
        )
    if len(nest1) != len(nest2):
        raise ValueError(f"structures differ: {len(nest1)} and {len(nest2)} parts")
    if isinstance(nest1, Mapping):
        if set(nest1) != set(nest2):
            raise ValueError(f"structures differ: keys {sorted(nest1)} and {sorted(nest2)}")
        pairs = [(nest1[key], nest2[key]) for key in sorted(nest1)]
    else:
        pairs = list(zip(nest1, nest2, strict=True))
    for first, second in pairs:
        assert_same_structure(first, second, check_types)


def convert_to_list(value: Any, n: int, name: str, dtype: type = int) -> list[Any]:
    """Return a list of n numbers; `value` is either a list or one number to repeat.

    >>> convert_to_list(3, 2, "stride")
    [3, 3]
    """
    if isinstance(value, dtype):
        return [value] * n
    if not isinstance(value, (list, tuple, np.ndarray)):
        raise ValueError(f"{name} must be a number or a list, got {value!r}")
    found = list(value)
    if len(found) != n:
        raise ValueError(f"{name} must have {n} numbers, got {value!r}")
    for one in found:
        try:
            dtype(one)
        except (TypeError, ValueError):
            raise ValueError(f"{name} must be a list of {dtype.__name__}, got {value!r}") from None
    return found


def convert_shape_to_list(shape: Any) -> list[Any]:
    """Return a shape's sizes as a list, keeping variables."""
    return [size if isinstance(size, Variable) else int(size) for size in shape]


def hold_mutable_vars(structure: Any) -> bool:
    """Return whether the structure contains a list or dict below its outermost level.

    >>> hold_mutable_vars([1]), hold_mutable_vars([1, [2]])
    (False, True)
    """
    items = structure.values() if isinstance(structure, Mapping) else structure
    return any(is_sequence(item) for item in items)


def copy_mutable_vars(structure: Any) -> Any:
    """Return a copy of the structure, with new lists and dicts but the same variables."""
    return pack_sequence_as(structure, list(flatten(structure)))
