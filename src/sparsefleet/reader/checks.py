"""Checks of arguments."""

from __future__ import annotations

import operator

from sparsefleet.errors import ConfigError

__all__ = ["check_count"]


def check_count(name: str, value: object, low: int = 1) -> int:
    """`value` as an int that is at least `low`; a ConfigError with `name` otherwise."""
    try:
        count = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        count = low - 1
    if count < low or isinstance(value, bool):
        raise ConfigError(f"{name} must be an int >= {low}, got {value!r}")
    return count
