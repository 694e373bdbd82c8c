"""The data that an engine needs besides its inputs: rows from tables, and dense parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from sparsefleet.errors import CheckpointMismatchError
from sparsefleet.store.arrays import Floats, Keys

__all__ = ["MODEL_PREFIX", "RowSource", "Tables", "require_same_shapes"]


class RowSource(Protocol):
    """The rows of one table in one consistent snapshot. Thread-safe."""

    def look_up(
        self,
        ids: NDArray[np.int64],
        *,
        padding_id: int | None = None,
        unknown: Literal["zeros", "initial"] = "zeros",
    ) -> Floats:
        """Return the rows for ids of any shape: float32[*ids.shape, D].

        A padding id yields zeros; an id without a row yields zeros or its initial row, depending on
        the lookup. If rows are unavailable, raises StoreUnavailableError instead of returning
        zeros.
        """

    def known(self, keys: Keys) -> NDArray[np.bool_]:
        """Return whether each key has a row, bool[N]. Raises the same errors as `look_up`."""


Tables = Mapping[str, RowSource]
"""The rows of all of a model's tables, by name."""


MODEL_PREFIX = "model."
"""Prefix that the graph adds to the model's parameter names."""


def require_same_shapes(
    wanted: Mapping[str, tuple[int, ...]], found: Mapping[str, NDArray[Any]]
) -> None:
    """Raise CheckpointMismatchError unless every expected parameter is present with its shape."""
    for name, shape in wanted.items():
        array = found.get(name)
        if array is None or array.shape != shape:
            there = (
                "no parameter with that name"
                if array is None
                else f"one of shape {list(array.shape)}"
            )
            raise CheckpointMismatchError(
                f"dense parameters belong to a different model: expected '{name}' of shape "
                f"{list(shape)}, found {there}"
            )
