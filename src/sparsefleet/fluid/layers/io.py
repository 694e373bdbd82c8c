"""Inputs of a program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparsefleet.fluid.variable import Variable

__all__ = ["data"]


def data(
    name: str,
    shape: Sequence[int | None],
    append_batch_size: bool = True,
    dtype: Any = "float32",
    lod_level: int = 0,
    *,
    stop_gradient: bool = True,
) -> Variable:
    """An input whose fed arrays are not checked; the shape is that of one sample.

    append_batch_size: put -1 in front of the shape, unless the shape has a -1 or None already.

    >>> data("C1", [1], dtype="int64", lod_level=1)
    Variable('C1', shape=(-1, 1), dtype='int64', lod_level=1)
    """
    known = Variable(name, shape, dtype, lod_level, stop_gradient=stop_gradient, is_data=True)
    if append_batch_size and -1 not in known.shape:
        known.shape = (-1, *known.shape)
    return known
