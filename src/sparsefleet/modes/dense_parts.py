"""Dense gradients that lie in parts, as the backward pass leaves them.

Letters: S elements of a dense table.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sparsefleet import _core
from sparsefleet.errors import ShapeError
from sparsefleet.store.arrays import Floats

DenseParts = Sequence[Floats]
"""Flat float32 arrays; one after another they are the gradient float32[S]."""


def join(parts: DenseParts) -> Floats:
    """The whole gradient, in memory of its own.

    >>> join([np.array([1, 2], np.float32), np.array([3], np.float32)])
    array([1., 2., 3.], dtype=float32)
    """
    whole = np.empty(sum(part.size for part in parts), np.float32)
    _core.join_parts(parts, whole)
    return whole


def sum_of_parts(table: str, gradients: Sequence[DenseParts]) -> Floats:
    """The sum of several gradients of one dense table, added in order.

    >>> half = [np.array([1], np.float32), np.array([2], np.float32)]
    >>> sum_of_parts("net", [half, half])
    array([2., 4.], dtype=float32)
    """
    whole = join(gradients[0])
    for parts in gradients[1:]:
        size = sum(part.size for part in parts)
        if size != whole.size:
            raise ShapeError(
                f"dense table '{table}': gradients of one worker must have one shape, "
                f"got {whole.size} and {size} elements"
            )
        _core.add_parts(parts, whole)
    return whole
