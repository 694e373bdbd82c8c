"""Sizes and shapes that shape rules of several families combine; -1 is unknown."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

from sparsefleet.fluid.lowering.registry import Shape, float_rule

__all__ = ["SAME_FLOATS", "common_shape", "product_of", "same_size"]


def same_size(first: int, second: int) -> int:
    """Return the common value of two sizes that must be equal; raise ValueError if they differ.

    >>> same_size(-1, 3), same_size(-1, -1)
    (3, -1)
    """
    if first < 0 or second < 0:
        return max(first, second)
    if first != second:
        raise ValueError(f"sizes {first} and {second} differ")
    return first


def product_of(sizes: Sequence[int]) -> int:
    """Return the product of sizes; -1 if one is unknown."""
    return math.prod(sizes) if all(size >= 0 for size in sizes) else -1


def common_shape(shapes: Sequence[Shape], but: Collection[int] = ()) -> Shape:
    """Return the shape that all inputs must have; the axes `but` may differ.

    >>> common_shape([(-1, 3), (4, 3)]), common_shape([(2, 3), (4, 3)], but=[0])
    ((4, 3), (2, 3))
    """
    made = list(shapes[0])
    for shape in shapes[1:]:
        if len(shape) != len(made):
            raise ValueError(f"inputs have {len(made)} and {len(shape)} axes, expected the same")
        made = [
            size if place in but else same_size(size, other)
            for place, (size, other) in enumerate(zip(made, shape, strict=True))
        ]
    return tuple(made)


def _same_floats(x: Shape, /, *others: Shape | None, **attrs: Any) -> list[Shape] | None:
    del attrs
    return [x] if all(other is None for other in others) else None


SAME_FLOATS = float_rule(_same_floats)
"""The output has the shape and type of the first input, if the optional ones are missing."""
