"""Whether dense parameters are those of a graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from sparsefleet.errors import CheckpointMismatchError

__all__ = ["MODEL_PREFIX", "require_same_shapes"]

MODEL_PREFIX = "model."
"""Of the names of parameters in a graph, before those that they have in the model."""


def require_same_shapes(
    wanted: Mapping[str, tuple[int, ...]], found: Mapping[str, NDArray[Any]]
) -> None:
    """Raises CheckpointMismatchError unless all that are wanted are found in their shapes."""
    for name, shape in wanted.items():
        array = found.get(name)
        if array is None or array.shape != shape:
            there = "none of that name" if array is None else f"one of shape {list(array.shape)}"
            raise CheckpointMismatchError(
                f"dense parameters of another model: wanted '{name}' of shape {list(shape)}, "
                f"found {there}"
            )
