"""Where an engine finds rows: a file, or anything else that can look up ids.

Letters: N keys, D row width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from sparsefleet.store.arrays import Floats, Keys

__all__ = ["RowSource", "Tables"]


class RowSource(Protocol):
    """The rows of one table, all of one moment. Thread-safe."""

    def look_up(
        self,
        ids: NDArray[np.int64],
        *,
        padding_id: int | None = None,
        unknown: Literal["zeros", "initial"] = "zeros",
    ) -> Floats:
        """The rows of ids of any shape: float32[*ids.shape, D].

        Padding reads as zeros; an id without a row as zeros, or as its row would start.
        Raises StoreUnavailableError if rows cannot be had now; never zeros instead.
        """

    def known(self, keys: Keys) -> NDArray[np.bool_]:
        """Which keys, uint64[N], have a row: bool[N]. Raises as `look_up`."""


Tables = Mapping[str, RowSource]
"""The rows of all tables of a model, by name."""
