"""Levels of detail: how the rows of one tensor fall into sequences, and these into longer ones.

Two notations, outermost level first. Lengths [[2, 1], [2, 2, 3]]: two samples, of two and one
sentences, of 2, 2 and 3 words. Offsets of the same: [[0, 2, 3], [0, 2, 4, 7]].
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Level", "as_lists", "is_valid", "offsets_of_lengths", "offsets_of_lod"]

Level = NDArray[np.int64]
"""Offsets of one level: they begin with 0 and never go down."""


def offsets_of_lod(lod: Iterable[ArrayLike]) -> tuple[Level, ...]:
    """Levels from offsets; ValueError if these are none."""
    levels = tuple(np.asarray(level, dtype=np.int64) for level in lod)
    for number, level in enumerate(levels):
        if level.ndim != 1 or not len(level) or level[0] != 0 or (np.diff(level) < 0).any():
            raise ValueError(
                f"LoD, level {number}: offsets must begin with 0 and never go down, got "
                f"{level.tolist()}; lengths are given by set_recursive_sequence_lengths"
            )
    return levels


def offsets_of_lengths(lengths: Iterable[ArrayLike]) -> tuple[Level, ...]:
    """Levels from lengths.

    >>> as_lists(offsets_of_lengths([[2, 1], [2, 2, 3]]))
    [[0, 2, 3], [0, 2, 4, 7]]
    """
    sums = (np.cumsum(np.asarray(level, dtype=np.int64)) for level in lengths)
    return offsets_of_lod(np.concatenate(([0], ends)) for ends in sums)


def is_valid(levels: Sequence[Level], num_rows: int) -> bool:
    """Whether each level covers exactly what the next one has, and the last one all rows.

    >>> is_valid(offsets_of_lod([[0, 2, 3], [0, 2, 4, 7]]), 7)
    True
    >>> is_valid(offsets_of_lod([[0, 2]]), 3)
    False
    """
    if not levels:
        return True
    nested = all(outer[-1] == len(inner) - 1 for outer, inner in pairwise(levels))
    return nested and int(levels[-1][-1]) == num_rows


def as_lists(levels: Iterable[NDArray[Any]]) -> list[list[int]]:
    """As programs want to see them."""
    return [level.tolist() for level in levels]
