"""What calls of a store hand back.

Letters: N keys, D row width, S floats of optimizer state a row, C counters a row.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparsefleet.store.arrays import Floats, Keys


class PushResult(NamedTuple):
    """What became of a push."""

    applied: int
    """Rows updated; for a dense table, elements."""
    rejected_non_finite: int
    """Rows skipped because their gradient held NaN or infinity."""
    not_admitted: int
    """Rows skipped because the admission rule has not let their key in."""


class Rows(NamedTuple):
    """Rows of a table as columns."""

    keys: Keys
    """uint64[N]"""
    values: Floats
    """float32[N, D]"""
    state: Floats
    """float32[N, S], the optimizer's; layout in docs/tables.md"""
    counters: NDArray[np.uint32]
    """uint32[N, C]: count, step, seconds; those the table keeps"""
