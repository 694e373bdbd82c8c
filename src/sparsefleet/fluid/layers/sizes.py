"""Sizes given as numbers, as a variable, or as a list of both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.layer_helper import LayerHelper

__all__ = ["Sizes", "sizes_of"]

Sizes = Variable | Sequence[int | Variable]


def sizes_of(
    helper: LayerHelper, name: str, value: Sizes, slot: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Inputs `<slot>Tensor` or `<slot>TensorList`, and attrs `name` and `<name>_places`."""
    if isinstance(value, Variable):
        return {f"{slot}Tensor": value}, {name: []}
    if isinstance(value, (str, bytes)) or not hasattr(value, "__iter__"):
        raise helper.refuse(f"{name} must be a list of numbers, or a Variable, got {value!r}")
    items = list(value)
    places = [place for place, item in enumerate(items) if isinstance(item, Variable)]
    try:
        known = [-1 if isinstance(item, Variable) else int(item) for item in items]
    except (TypeError, ValueError):
        raise helper.refuse(f"{name} must be numbers or Variables, got {items!r}") from None
    inputs = {f"{slot}TensorList": [items[place] for place in places]} if places else {}
    return inputs, {name: known, f"{name}_places": places}
