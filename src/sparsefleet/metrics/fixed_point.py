"""Sums of real numbers that do not depend on the order of adding.

A number is rounded once to a multiple of 2**-44 (6e-14) and kept as two integers, which are then
summed apart: integers can be added in any order, floats cannot. For numbers in 0..100 neither sum
overflows an int64 before 10**11 examples.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_FRACTION_BITS = 44
_LOW_BITS = 26
_LOW_MASK = (1 << _LOW_BITS) - 1


def split(numbers: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """High and low part of each number, 0 <= number <= 100."""
    multiples = np.rint(numbers * float(1 << _FRACTION_BITS)).astype(np.int64)
    return multiples >> _LOW_BITS, multiples & _LOW_MASK


def join(high: Any, low: Any) -> float:
    """The sum as a float, correctly rounded, from the sums of both parts."""
    return ((int(high) << _LOW_BITS) + int(low)) / (1 << _FRACTION_BITS)
