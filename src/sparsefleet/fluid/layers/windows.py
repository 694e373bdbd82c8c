"""Arguments of layers whose windows go over pictures and volumes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparsefleet.fluid.layer_helper import LayerHelper

__all__ = ["Padding", "Span", "border", "check_format", "span"]

Span = int | Sequence[int]
Padding = int | str | Sequence[Any]
_FORMATS = {2: ("NCHW", "NHWC"), 3: ("NCDHW", "NDHWC")}


def span(helper: LayerHelper, value: Span, rank: int, what: str) -> list[int]:
    """A number for each axis of a picture, of one for all or a list."""
    found = [value] * rank if isinstance(value, int) else list(value)
    if len(found) == 1:
        found *= rank
    if len(found) != rank or not all(isinstance(number, int) for number in found):
        raise helper.refuse(f"{what} must be a number or {rank}, got {value!r}")
    return found


def border(helper: LayerHelper, padding: Padding, rank: int, data_format: str) -> list[int] | str:
    """Before and after, axis by axis; or "SAME", "VALID"."""
    if isinstance(padding, str):
        if padding.upper() not in ("SAME", "VALID"):
            raise helper.refuse(f"padding must be numbers, 'SAME' or 'VALID', got {padding!r}")
        return padding.upper()
    if isinstance(padding, int):
        return [padding] * (2 * rank)
    given = list(padding)
    if len(given) == rank + 2 and all(isinstance(pair, (list, tuple)) for pair in given):
        middle = given[1:-1] if data_format.endswith("C") else given[2:]
        others = [pair for pair in given if not any(pair is kept for kept in middle)]
        if any(number for pair in others for number in pair):
            raise helper.refuse(f"padding of batch and channels must be 0, got {padding!r}")
        return [number for pair in middle for number in pair]
    if len(given) == rank:
        return [number for number in given for _ in range(2)]
    if len(given) == 2 * rank:
        return given
    raise helper.refuse(
        f"padding must be a number, {rank}, {2 * rank}, or pairs for {rank + 2} axes, got "
        f"{padding!r}"
    )


def check_format(helper: LayerHelper, data_format: str, shape: Sequence[int], rank: int) -> int:
    """The number of channels; an error if the shape is not that of such pictures."""
    if data_format not in _FORMATS[rank]:
        wanted = " or ".join(map(repr, _FORMATS[rank]))
        raise helper.refuse(f"data_format must be {wanted}, got {data_format!r}")
    if len(shape) != rank + 2:
        raise helper.refuse(f"takes inputs with {rank + 2} sizes, {data_format}, got {list(shape)}")
    return shape[-1] if data_format.endswith("C") else shape[1]
