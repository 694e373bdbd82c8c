"""Zeros in slots without shape: Fluid's in-memory data leaves them out. Letters: B records."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_SMALLEST_FLOAT = 1e-6  # Fluid's: a float nearer to 0 counts as 0

Ragged = tuple[NDArray[Any], NDArray[np.int64]]


def drop_zeros(values: NDArray[Any], offsets: NDArray[np.int64]) -> Ragged:
    """Without the zeros; a record may be left with no value.

    >>> values, offsets = drop_zeros(np.array([0, 0, 7, 0]), np.array([0, 3, 4]))
    >>> values.tolist(), offsets.tolist()
    ([7], [0, 1, 1])
    """
    kept = np.abs(values) >= _SMALLEST_FLOAT if values.dtype.kind == "f" else values != 0
    if kept.all():
        return values, offsets
    before = np.zeros(len(values) + 1, np.int64)
    np.cumsum(kept, out=before[1:])
    return values[kept], before[offsets]


def fill_empty(values: NDArray[Any], offsets: NDArray[np.int64]) -> Ragged:
    """With one 0 for each record that has no value.

    >>> values, offsets = fill_empty(np.array([7]), np.array([0, 1, 1]))
    >>> values.tolist(), offsets.tolist()
    ([7, 0], [0, 1, 2])
    """
    is_empty = offsets[1:] == offsets[:-1]
    if not is_empty.any():
        return values, offsets
    filled = np.insert(values, offsets[:-1][is_empty], 0)
    added = np.zeros(len(offsets), np.int64)
    np.cumsum(is_empty, out=added[1:])
    return filled, offsets + added
