"""Shapes of common operators on floats, known without a run on empty tensors.

The first such run loads large parts of torch: over a second and 70 MiB that a program of these
operators does not need. A rule returns None for inputs that it does not cover; those are run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sparsefleet.fluid.lowering.registry import Shape

__all__ = ["FLOAT_RULES", "OTHER_TYPES", "WITH_INDICES"]

Rule = Callable[..., "list[Shape] | None"]


def _same(x: Shape, /, *others: Shape | None, **attrs: Any) -> list[Shape] | None:
    del attrs
    return [x] if all(other is None for other in others) else None


def _normalized(x: Shape, /, *others: Shape | None, **attrs: Any) -> list[Shape] | None:
    begin = attrs.get("begin_norm_axis", 1)
    sizes = x[begin:]
    if not 0 < begin < len(x) or min(sizes) < 0:
        return None
    count = 1
    for size in sizes:
        count *= size
    return [x] if all(other in (None, (count,)) for other in others) else None


def _along_axis(x: Shape, /, **attrs: Any) -> list[Shape] | None:
    return [x] if -len(x) <= attrs.get("axis", -1) < len(x) else None


def _both(x: Shape, y: Shape, /, **attrs: Any) -> list[Shape] | None:
    del attrs
    return [x] if x == y else None


def _one(x: Shape, /, **attrs: Any) -> list[Shape]:
    del x, attrs
    return [(1,)]


def _reduced(x: Shape, /, **attrs: Any) -> list[Shape] | None:
    given: Sequence[int] | None = attrs.get("dim")
    keep = bool(attrs.get("keep_dim"))
    axes = range(len(x)) if given is None or attrs.get("reduce_all") else given
    if not x or not axes or any(not -len(x) <= axis < len(x) for axis in axes):
        return None
    gone = {axis % len(x) for axis in axes}
    sizes = [1 if place in gone else size for place, size in enumerate(x)]
    if not keep:
        sizes = [size for place, size in enumerate(sizes) if place not in gone]
    return [tuple(sizes) or (1,)]


def _transposed(x: Shape, /, **attrs: Any) -> list[Shape] | None:
    axes = attrs["axis"]
    return [tuple(x[axis] for axis in axes)] if sorted(axes) == list(range(len(x))) else None


def _is_class_of(x: Shape, label: Shape, attrs: Any) -> bool:
    return not attrs.get("soft_label") and bool(x) and label == (*x[:-1], 1)


def _cross_entropy(x: Shape, label: Shape, /, **attrs: Any) -> list[Shape] | None:
    return [label] if _is_class_of(x, label, attrs) else None


def _softmax_cross_entropy(x: Shape, label: Shape, /, **attrs: Any) -> list[Shape] | None:
    is_last = attrs.get("axis", -1) in (-1, len(x) - 1)
    return [x, label] if is_last and _is_class_of(x, label, attrs) else None


def _rows_of_column(table: Shape, ids: Shape, /, **attrs: Any) -> list[Shape] | None:
    del attrs
    return [(*ids[:-1], table[1])] if len(table) == 2 and ids[-1:] == (1,) else None


def _rows(table: Shape, ids: Shape, /, **attrs: Any) -> list[Shape] | None:
    del attrs
    return [(*ids, table[1])] if len(table) == 2 else None


def _best(x: Shape, k: Shape | None, /, **attrs: Any) -> list[Shape] | None:
    count = attrs.get("k", 0)
    if k is not None or not x or not 0 < count <= (x[-1] if x[-1] >= 0 else count):
        return None
    return [(*x[:-1], count)] * 2


def _accuracy(values: Shape, indices: Shape, label: Shape, /, **attrs: Any) -> list[Shape] | None:
    del values, attrs
    is_class = len(indices) == 2 and label in ((indices[0], 1), (indices[0],))
    return [(1,)] * 3 if is_class else None


_SAME = (
    "abs ceil clip cos dropout elu exp floor gelu hard_sigmoid leaky_relu log pow reciprocal relu "
    "relu6 round rsqrt scale sigmoid sin softplus softsign sqrt square stanh swish tanh"
)

FLOAT_RULES: dict[str, Rule] = {
    **dict.fromkeys(_SAME.split(), _same),
    **dict.fromkeys(("log_softmax", "softmax"), _along_axis),
    **dict.fromkeys(("log_loss", "sigmoid_cross_entropy_with_logits"), _both),
    **dict.fromkeys(
        ("reduce_max", "reduce_mean", "reduce_min", "reduce_prod", "reduce_sum"), _reduced
    ),
    "accuracy": _accuracy,
    "cross_entropy": _cross_entropy,
    "layer_norm": _normalized,
    "lookup_table": _rows_of_column,
    "lookup_table_v2": _rows,
    "mean": _one,
    "softmax_with_cross_entropy": _softmax_cross_entropy,
    "top_k": _best,
    "transpose2": _transposed,
}
"""Outputs have the type of the first input."""

OTHER_TYPES: dict[str, tuple[str, ...]] = {
    "accuracy": ("float32", "int32", "int32"),
    "top_k": ("", "int64"),
}
"""Types of outputs that are not that of the first input."""

WITH_INDICES = frozenset(
    ("accuracy", "cross_entropy", "lookup_table", "lookup_table_v2", "softmax_with_cross_entropy")
)
"""Operators whose other inputs are classes or ids; all others have inputs of one type."""
