"""Infers output shapes from sizes that must match, multiply or divide; -1 is unknown."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from sparsefleet.fluid.lowering.registry import Shape

__all__ = ["RULES", "TRUTH_VALUES", "broadcast", "matmul_shape", "same_size"]

Rule = Callable[..., "list[Shape] | None"]
"""Takes shapes by slot and attrs; None where it does not apply."""


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


def broadcast(x: Shape, y: Shape, axis: int = -1) -> Shape:
    """Return the shape of an element-wise result; axes of the shorter start at `axis` of the
    longer.

    >>> broadcast((-1, 3, 4), (3,), 1), broadcast((-1, 10), (5, 1))
    ((-1, 3, 4), (5, 10))
    """
    longer, shorter = (x, y) if len(x) >= len(y) else (y, x)
    sizes = list(shorter)
    if axis >= 0:
        while axis + len(sizes) > len(longer) and len(sizes) > 1 and sizes[-1] == 1:
            sizes.pop()
    begin = len(longer) - len(sizes) if axis < 0 else axis
    if begin < 0 or begin + len(sizes) > len(longer):
        raise ValueError(f"axis {axis} leaves too few dimensions of {list(longer)} for {sizes}")
    made = list(longer)
    for place, size in enumerate(sizes, begin):
        other = longer[place]
        if 1 in (size, other):
            made[place] = other if size == 1 else size
        elif size == 0 or other == 0:
            made[place] = 0
        else:
            made[place] = same_size(other, size)
    return tuple(made)


def matmul_shape(x: Shape, y: Shape, transpose_x: bool, transpose_y: bool) -> Shape:
    """Return the shape of a product; a vector x is one row, a vector y one column.

    >>> matmul_shape((-1, -1, -1), (-1, -1, 16), False, False)
    (-1, -1, 16)
    >>> matmul_shape((3,), (3,), True, True)
    (3, 3)
    """
    left = (1, *x) if len(x) == 1 else x
    right = (*y, 1) if len(y) == 1 else y
    rows, inner = left[-2:][::-1] if transpose_x else left[-2:]
    other, columns = right[-2:][::-1] if transpose_y else right[-2:]
    same_size(inner, other)
    batch = broadcast(left[:-2], right[:-2])
    if len(left) > 2 and len(right) > 2:
        for one, two in zip(left[-3::-1], right[-3::-1], strict=False):
            same_size(one, two)
    made = [*batch, rows, columns]
    if len(x) == 1 and made[-2] == 1:
        del made[-2]
    if len(y) == 1 and made[-1] == 1:
        del made[-1]
    return tuple(made) or (1,)


def _matmul(x: Shape, y: Shape, **attrs: Any) -> list[Shape]:
    flags = (bool(attrs.get("transpose_X")), bool(attrs.get("transpose_Y")))
    return [matmul_shape(x, y, *flags)]


def _product(sizes: Sequence[int]) -> int:
    return math.prod(sizes) if all(size >= 0 for size in sizes) else -1


def _mul(x: Shape, y: Shape, **attrs: Any) -> list[Shape]:
    rows, columns = attrs.get("x_num_col_dims", 1), attrs.get("y_num_col_dims", 1)
    same_size(_product(x[rows:]), _product(y[:columns]))
    return [(*x[:rows], *y[columns:])]


def _elementwise(x: Shape, y: Shape, **attrs: Any) -> list[Shape]:
    return [broadcast(x, y, attrs.get("axis", -1))]


def _reshape(x: Shape, whole: Shape | None, parts: list[Shape], **attrs: Any) -> list[Shape] | None:
    if whole is not None or parts:
        return None
    given = list(attrs["shape"])
    if given.count(-1) > 1 or any(size < -1 for size in given):
        raise ValueError(f"shape {given} must have sizes >= 0 and at most one -1")
    if any(size == 0 and place >= len(x) for place, size in enumerate(given)):
        raise ValueError(f"shape {given} refers to a dimension that {list(x)} does not have")
    copied = {place for place, size in enumerate(given) if size == 0}
    sizes = [x[place] if place in copied else size for place, size in enumerate(given)]
    # Copied sizes are on both sides, so they need not be known.
    before = _product([size for place, size in enumerate(x) if place not in copied])
    rest = [size for place, size in enumerate(sizes) if place not in copied]
    after = _product([size for size in rest if size != -1])
    if -1 in given:
        place = given.index(-1)
        if before >= 0 and after > 0:
            if before % after:
                raise ValueError(
                    f"{list(x)} has {before} elements, which is not a multiple of {after}"
                )
            sizes[place] = before // after
        elif before == 0:
            sizes[place] = 0
    elif before >= 0 and before != after:
        raise ValueError(f"{list(x)} cannot become {given}")
    return [tuple(sizes)]


def _concat(shapes: list[Shape], axis_tensor: Shape | None, **attrs: Any) -> list[Shape] | None:
    if axis_tensor is not None:
        return [(-1,) * len(shapes[0])]
    rank = len(shapes[0])
    axis = attrs.get("axis", 0)
    if not -rank <= axis < rank:
        raise ValueError(f"axis {axis} is not within the {rank} axes of the inputs")
    axis %= rank
    made = _all_same(shapes, {axis})
    along = [shape[axis] for shape in shapes]
    return [(*made[:axis], sum(along) if min(along) >= 0 else -1, *made[axis + 1 :])]


def _all_same(shapes: Sequence[Shape], but: set[int] = frozenset()) -> Shape:  # type: ignore[assignment]
    made = list(shapes[0])
    for shape in shapes[1:]:
        if len(shape) != len(made):
            raise ValueError(f"inputs have {len(made)} and {len(shape)} axes, expected the same")
        made = [
            size if place in but else same_size(size, other)
            for place, (size, other) in enumerate(zip(made, shape, strict=True))
        ]
    return tuple(made)


def _stack(shapes: list[Shape], **attrs: Any) -> list[Shape]:
    made = _all_same(shapes)
    axis = attrs.get("axis", 0)
    if not -len(made) - 1 <= axis <= len(made):
        raise ValueError(f"axis {axis} is not within {-len(made) - 1}..{len(made)}")
    axis %= len(made) + 1
    return [(*made[:axis], len(shapes), *made[axis:])]


def _gather_nd(x: Shape, index: Shape, **attrs: Any) -> list[Shape] | None:
    del attrs
    if not index or index[-1] < 0:
        return None
    if index[-1] > len(x):
        raise ValueError(f"index has {index[-1]} numbers per position, but x has {len(x)} axes")
    return [(*index[:-1], *x[index[-1] :]) or (1,)]


def _expand_as(x: Shape, target: Shape, **attrs: Any) -> list[Shape]:
    del attrs
    if len(x) != len(target):
        raise ValueError(f"x has {len(x)} axes, but the target has {len(target)}")
    return [target]


def _split(
    x: Shape, axis_tensor: Shape | None, parts: list[Shape], **attrs: Any
) -> list[Shape] | None:
    axis, num = attrs.get("axis", 0), attrs.get("num", 0)
    sections = list(attrs.get("sections", ()))
    if axis_tensor is not None:
        return [(-1,) * len(x)] * (num or len(sections))
    if not -len(x) <= axis < len(x):
        raise ValueError(f"axis {axis} is not within the {len(x)} axes of the input")
    axis %= len(x)
    if num:
        if x[axis] >= 0 and x[axis] % num:
            raise ValueError(f"size {x[axis]} of axis {axis} is not divisible by {num}")
        sections = [x[axis] // num if x[axis] >= 0 else -1] * num
    elif -1 in sections and x[axis] >= 0 and not parts:
        sections[sections.index(-1)] = x[axis] - sum(size for size in sections if size >= 0)
    elif -1 not in sections and x[axis] >= 0 and sum(sections) != x[axis]:
        raise ValueError(f"sections {sections} do not add up to {x[axis]}")
    return [(*x[:axis], size, *x[axis + 1 :]) for size in sections]


def _sum(shapes: list[Shape], **attrs: Any) -> list[Shape] | None:
    del attrs
    known = [shape for shape in shapes if shape]
    return [_all_same(known)] if known and len(known) == len(shapes) else None


def _flatten(x: Shape, **attrs: Any) -> list[Shape]:
    axis = attrs.get("axis", 1)
    return [(_product(x[:axis]), _product(x[axis:]))]


def _squeeze(x: Shape, **attrs: Any) -> list[Shape] | None:
    axes = list(attrs.get("axes", ()))
    if not axes:
        return None
    if any(not -len(x) <= axis < len(x) for axis in axes):
        raise ValueError(f"axes {axes} are not within the {len(x)} axes of the input")
    dropped = {axis % len(x) for axis in axes if x[axis] in (1, -1)}
    return [tuple(size for place, size in enumerate(x) if place not in dropped)]


def _same(x: Shape, **attrs: Any) -> list[Shape]:
    del attrs
    return [x]


TRUTH_VALUES = frozenset(
    (
        "equal",
        "greater_equal",
        "greater_than",
        "less_equal",
        "less_than",
        "logical_and",
        "logical_or",
        "logical_xor",
        "not_equal",
    )
)
"""Operators of two inputs whose elements are bools."""

RULES: dict[str, Rule] = {
    "concat": _concat,
    "elementwise_add": _elementwise,
    "elementwise_div": _elementwise,
    "elementwise_floordiv": _elementwise,
    "elementwise_max": _elementwise,
    "elementwise_min": _elementwise,
    "elementwise_mod": _elementwise,
    "elementwise_mul": _elementwise,
    "elementwise_pow": _elementwise,
    "elementwise_sub": _elementwise,
    "expand_as": _expand_as,
    "flatten2": _flatten,
    "gather_nd": _gather_nd,
    "increment": _same,
    "matmul": _matmul,
    "mul": _mul,
    "reshape2": _reshape,
    "split": _split,
    "squeeze2": _squeeze,
    "stack": _stack,
    "sum": _sum,
    **dict.fromkeys(TRUTH_VALUES, _elementwise),
}
