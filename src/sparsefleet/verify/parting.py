"""The layer at which two predictions of one example part."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparsefleet.export.golden import largest_difference
from sparsefleet.verify.side import Trace

__all__ = ["Parting", "find_parting"]


class Parting(NamedTuple):
    """Layers in order, and the first that differs."""

    layer: str
    """As people say it."""
    steps: list[tuple[str, float]]
    """Layers that both sides tell, with how much they differ."""


def find_parting(offline: Trace, online: Trace, tolerance: float) -> Parting | None:
    """The first layer that differs by more than a tenth of the tolerance; a lookup, at all.

    None if no layer that both tell differs.
    """
    for name, array in offline.inputs.items():
        other = online.inputs.get(name)
        if other is None or _gap(array, other) > 0:
            return Parting(f"input '{name}', before the model", [])
    theirs = {layer.name: layer for layer in online.layers}
    steps: list[tuple[str, float]] = []
    parted = None
    for layer in offline.layers:
        other_layer = theirs.get(layer.name)
        if other_layer is None:
            continue
        gap = _gap(layer.values, other_layer.values)
        allowed = 0.0 if layer.what.startswith("look_up(") else tolerance / 10
        said = f"{layer.what} ({layer.name})"
        steps.append((said, gap))
        if parted is None and gap > allowed:
            parted = said
    if parted is None:
        only = [layer for layer in offline.layers if layer.name not in theirs]
        if not only or not online.layers:
            return None
        parted = f"{only[0].what} ({only[0].name}), which only offline has"
    return Parting(parted, steps)


def _gap(one: NDArray[Any], two: NDArray[Any]) -> float:
    """The largest difference; what no JSON number stands for is equal to its like."""
    if one.shape == two.shape and one.dtype.kind == two.dtype.kind == "f":
        neither = ~np.isfinite(one) & ~np.isfinite(two)
        one, two = np.where(neither, 0, one), np.where(neither, 0, two)
    return largest_difference({"": two}, {"": one})
