"""`paddle.compat`: strings and numbers that behave the same in Python 2 and 3."""

from __future__ import annotations

import math
from typing import Any

__all__ = [
    "floor_division",
    "get_exception_message",
    "int_type",
    "long_type",
    "round",
    "to_bytes",
    "to_text",
]

int_type = long_type = int


def to_text(obj: Any, encoding: str = "utf-8", inplace: bool = False) -> Any:
    """Return `obj` with bytes decoded, even inside containers; `inplace` modifies the containers.

    >>> to_text([b"a", "b", 3])
    ['a', 'b', 3]
    """
    return _convert(obj, inplace, lambda one: _decoded(one, encoding))


def to_bytes(obj: Any, encoding: str = "utf-8", inplace: bool = False) -> Any:
    """Return `obj` with strings encoded, even inside containers; `inplace` modifies the containers.

    >>> to_bytes({"a"})
    {b'a'}
    """
    return _convert(obj, inplace, lambda one: _encoded(one, encoding))


def round(x: float, d: int = 0) -> float:
    """Round half away from zero, like Python 2.

    >>> round(0.5), round(-2.5), round(2.675, 1)
    (1.0, -3.0, 2.7)
    """
    factor = 10.0**d
    if x > 0.0:
        return float(math.floor(x * factor + 0.5)) / factor
    return float(math.ceil(x * factor - 0.5)) / factor if x < 0.0 else 0.0


def floor_division(x: Any, y: Any) -> Any:
    """Return x // y."""
    return x // y


def get_exception_message(exc: BaseException) -> str:
    """Return the exception's message."""
    assert exc is not None, "get_exception_message needs an exception, got None"
    return str(exc)


def _convert(obj: Any, inplace: bool, change: Any) -> Any:
    made: Any
    if isinstance(obj, dict):
        made = {change(key): change(value) for key, value in obj.items()}
    elif isinstance(obj, (list, set)):
        made = type(obj)(change(one) for one in obj)
    else:
        return change(obj)
    if not inplace:
        return made
    obj.clear()
    (obj.extend if isinstance(obj, list) else obj.update)(made)
    return obj


def _decoded(one: Any, encoding: str) -> Any:
    return one.decode(encoding) if isinstance(one, bytes) else one


def _encoded(one: Any, encoding: str) -> Any:
    return one.encode(encoding) if isinstance(one, str) else one
