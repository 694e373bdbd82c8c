"""Many elements to one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.layer_helper import LayerHelper, layer

__all__ = [
    "argmax",
    "argmin",
    "cumsum",
    "mean",
    "reduce_all",
    "reduce_any",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_prod",
    "reduce_sum",
]


def _reduction(type: str) -> Callable[..., Variable]:
    def call(
        input: Variable,
        dim: int | Sequence[int] | None = None,
        keep_dim: bool = False,
        name: str | None = None,
    ) -> Variable:
        helper = LayerHelper(type, name)
        axes = [dim] if isinstance(dim, int) else None if dim is None else list(dim)
        attrs = {"dim": axes or None, "keep_dim": keep_dim}
        return helper.add(type, {"X": helper.check_input(input)}, attrs)

    call.__name__ = call.__qualname__ = type
    call.__doc__ = f"The {type.removeprefix('reduce_')} over axes `dim`, or over all."
    return layer(call)


reduce_all = _reduction("reduce_all")
reduce_any = _reduction("reduce_any")
reduce_max = _reduction("reduce_max")
reduce_mean = _reduction("reduce_mean")
reduce_min = _reduction("reduce_min")
reduce_prod = _reduction("reduce_prod")
reduce_sum = _reduction("reduce_sum")


@layer
def mean(x: Variable, name: str | None = None) -> Variable:
    """Of all elements: shape [1]."""
    helper = LayerHelper("mean", name)
    return helper.add("mean", {"X": helper.check_input(x, "x")})


@layer
def argmax(x: Variable, axis: int = 0) -> Variable:
    """Where the largest element along an axis is: int64."""
    helper = LayerHelper("arg_max")
    return helper.add("arg_max", {"X": helper.check_input(x, "x")}, {"axis": axis})


@layer
def argmin(x: Variable, axis: int = 0) -> Variable:
    """Where the smallest element along an axis is: int64."""
    helper = LayerHelper("arg_min")
    return helper.add("arg_min", {"X": helper.check_input(x, "x")}, {"axis": axis})


@layer
def cumsum(
    x: Variable,
    axis: int | None = None,
    exclusive: bool | None = None,
    reverse: bool | None = None,
) -> Variable:
    """Sums of the elements so far; exclusive: without itself; reverse: from the end."""
    helper = LayerHelper("cumsum")
    attrs = {
        "axis": -1 if axis is None else axis,
        "exclusive": bool(exclusive),
        "reverse": bool(reverse),
    }
    return helper.add("cumsum", {"X": helper.check_input(x, "x")}, attrs)
