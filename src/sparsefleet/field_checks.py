"""Checks for config fields; each raises ConfigError with the field, its value and the rule."""

from __future__ import annotations

import math

from sparsefleet.errors import ConfigError


def require(holds: bool, owner: object, field: str, wanted: str) -> None:
    """Raise ConfigError unless `holds`; the message includes the field's value."""
    if not holds:
        found = getattr(owner, field)
        raise ConfigError(f"{type(owner).__name__}.{field} must be {wanted}, got {found!r}")


def is_number(value: object) -> bool:
    """Return True for a finite int or float; a bool is not a number here."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def require_int(owner: object, field: str, low: int, high: int) -> None:
    """Raise ConfigError unless the field is an int with low <= value <= high."""
    value = getattr(owner, field)
    holds = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
    require(holds, owner, field, f"an int in {low}..{high}")


def require_finite(owner: object, field: str) -> None:
    require(is_number(getattr(owner, field)), owner, field, "a finite number")


def require_not_negative(owner: object, field: str) -> None:
    value = getattr(owner, field)
    require(is_number(value) and value >= 0, owner, field, "a finite number >= 0")


def require_positive(owner: object, field: str) -> None:
    value = getattr(owner, field)
    require(is_number(value) and value > 0, owner, field, "a finite number > 0")


def require_fraction(owner: object, field: str) -> None:
    """Raise ConfigError unless 0 <= value < 1, for decay rates and momentum."""
    value = getattr(owner, field)
    require(is_number(value) and 0 <= value < 1, owner, field, "a number with 0 <= value < 1")


def require_bool(owner: object, field: str) -> None:
    require(isinstance(getattr(owner, field), bool), owner, field, "True or False")
