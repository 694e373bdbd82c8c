"""Sizes given as numbers, as a variable, or as a list of both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.operators.layer_helper import LayerHelper

Tensor = torch.Tensor


def run_sizes(
    given: Sequence[int], whole: Tensor | None, parts: Sequence[Tensor], places: Sequence[int]
) -> list[int]:
    """Return the values of `whole` or, if None, `given` with the values of `parts` at `places`.

    >>> run_sizes([-1, 3], None, [torch.tensor([5])], [0])
    [5, 3]
    """
    if whole is not None:
        return [int(number) for number in whole.reshape(-1)]
    found = list(given)
    for place, part in zip(places, parts, strict=True):
        found[place] = int(part)
    return found


def open_sizes(
    given: Sequence[int], whole: tuple[int, ...] | None, places: Sequence[int]
) -> list[int]:
    """Return the sizes known while the program is built, with -1 for unknown sizes."""
    if whole is not None:
        if any(size < 0 for size in whole):
            raise ValueError(f"a variable that holds sizes must have a known shape, got {whole}")
        return [-1] * math.prod(whole)
    return [-1 if place in places else size for place, size in enumerate(given)]


Sizes = Variable | Sequence[int | Variable]


def sizes_of(
    helper: LayerHelper, name: str, value: Sizes, slot: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return an operator's inputs (`<slot>Tensor` or `<slot>TensorList`) and attrs (`name` and
    `<name>_places`) for these sizes.
    """
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
