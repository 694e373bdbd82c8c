"""Initial values of rows, computed as a pure function of (table seed, key, column).

The values do not depend on request order, threads, or the number of servers.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from sparsefleet.field_checks import (
    is_number,
    require,
    require_bool,
    require_finite,
    require_not_negative,
)

__all__ = ["Constant", "Initializer", "Normal", "TruncatedNormal", "Uniform", "Xavier"]

NativeFields = dict[str, float | str]


@dataclass(frozen=True, slots=True)
class Initializer(ABC):
    """The base class of initializers. Use one of the classes below."""

    @abstractmethod
    def native_fields(self, dim: int) -> NativeFields:
        """Return the fields of the native InitializerSpec for rows of `dim` values."""


@dataclass(frozen=True, slots=True)
class Constant(Initializer):
    """Every element starts with the same value.

    >>> Constant(0.5).native_fields(dim=8)
    {'kind': 'constant', 'a': 0.5, 'b': 0.0}
    """

    value: float = 0.0
    """The value."""

    def __post_init__(self) -> None:
        require_finite(self, "value")

    def native_fields(self, dim: int) -> NativeFields:
        del dim
        return {"kind": "constant", "a": float(self.value), "b": 0.0}


@dataclass(frozen=True, slots=True)
class Uniform(Initializer):
    """Uniformly distributed values: low <= value < high."""

    low: float = -0.01
    """Lower bound, inclusive."""

    high: float = 0.01
    """Upper bound, exclusive."""

    def __post_init__(self) -> None:
        require_finite(self, "low")
        require_finite(self, "high")
        require(self.low < self.high, self, "high", f"> low ({self.low})")

    def native_fields(self, dim: int) -> NativeFields:
        del dim
        return {"kind": "uniform", "a": float(self.low), "b": float(self.high)}


@dataclass(frozen=True, slots=True)
class _Bell(Initializer):
    _KIND: ClassVar[str]

    mean: float = 0.0
    """The mean."""

    std: float = 0.01
    """The standard deviation, before truncation if there is any."""

    def __post_init__(self) -> None:
        require_finite(self, "mean")
        require_not_negative(self, "std")

    def native_fields(self, dim: int) -> NativeFields:
        del dim
        return {"kind": self._KIND, "a": float(self.mean), "b": float(self.std)}


@dataclass(frozen=True, slots=True)
class Normal(_Bell):
    """Normally distributed values."""

    _KIND = "normal"


@dataclass(frozen=True, slots=True)
class TruncatedNormal(_Bell):
    """Normally distributed values, each redrawn until it is within two standard deviations."""

    _KIND = "truncated_normal"


@dataclass(frozen=True, slots=True)
class Xavier(Initializer):
    """Glorot and Bengio (2010): wider layers get smaller values.

    A growing table has no fixed height, so both fans default to the row width.
    """

    fan_in: int | None = None
    """Number of inputs; None means the row width."""

    fan_out: int | None = None
    """Number of outputs; None means the row width."""

    uniform: bool = True
    """Uniform in +-sqrt(6 / (fan_in + fan_out)); if False, normal with std sqrt(2 / (...))."""

    def __post_init__(self) -> None:
        for field in ("fan_in", "fan_out"):
            value = getattr(self, field)
            holds = value is None or (is_number(value) and isinstance(value, int) and value >= 1)
            require(holds, self, field, "None or an int >= 1")
        require_bool(self, "uniform")

    def native_fields(self, dim: int) -> NativeFields:
        fan_in = dim if self.fan_in is None else self.fan_in
        fan_out = dim if self.fan_out is None else self.fan_out
        if self.uniform:
            limit = math.sqrt(6.0 / (fan_in + fan_out))
            return {"kind": "uniform", "a": -limit, "b": limit}
        return {"kind": "normal", "a": 0.0, "b": math.sqrt(2.0 / (fan_in + fan_out))}
