"""Variables with a pattern, or random, in a size that is known or that of another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparsefleet.fluid.dtypes import dtype_name
from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.layer_helper import LayerHelper, layer
from sparsefleet.fluid.layers.filling import fill_constant
from sparsefleet.fluid.layers.sizes import Sizes, sizes_of

__all__ = [
    "arange",
    "eye",
    "full",
    "full_like",
    "gaussian_random_batch_size_like",
    "linspace",
    "randint",
    "randn",
    "random_crop",
    "randperm",
    "range",
    "sampling_id",
    "uniform_random_batch_size_like",
]


def _into(out: Variable | None, made: Variable, stop_gradient: bool) -> Variable:
    made.stop_gradient = stop_gradient
    if out is None:
        return made
    LayerHelper("assign").append_op("assign", {"X": made}, {"Out": out})
    out.stop_gradient = stop_gradient
    return out


@layer
def full(
    shape: Sizes,
    fill_value: float | Variable,
    out: Variable | None = None,
    dtype: Any = None,
    device: str | None = None,
    stop_gradient: bool = True,
    name: str | None = None,
) -> Variable:
    """One number everywhere."""
    del device
    helper = LayerHelper("full", name)
    kind = "float32" if dtype is None else dtype
    made = helper.new_variable(kind) if out is None else out
    fill_constant(shape, kind, fill_value, out=made)
    made.stop_gradient = stop_gradient
    return made


@layer
def full_like(
    input: Variable,
    fill_value: float,
    out: Variable | None = None,
    dtype: Any = None,
    device: str | None = None,
    stop_gradient: bool = True,
    name: str | None = None,
) -> Variable:
    """One number in the shape of a variable."""
    del device
    helper = LayerHelper("full_like", name)
    attrs: dict[str, Any] = {"value": float(fill_value)}
    if dtype is not None:
        attrs["dtype"] = dtype_name(dtype)
    made = helper.add("fill_any_like", {"X": helper.check_input(input)}, attrs)
    return _into(out, made, stop_gradient)


def _scalar(value: float | Variable, dtype: str) -> Variable:
    if isinstance(value, Variable):
        return value if value.dtype == dtype else value.astype(dtype)
    return fill_constant([1], dtype, value)


@layer
def range(
    start: float | Variable, end: float | Variable, step: float | Variable, dtype: Any
) -> Variable:
    """From start in steps up to end, which is not in it."""
    helper = LayerHelper("range")
    kind = dtype_name(dtype)
    values = {"Start": start, "End": end, "Step": step}
    attrs = {}
    numbers = [value for value in values.values() if not isinstance(value, Variable)]
    if len(numbers) == 3:
        attrs["count"] = max(-int((numbers[0] - numbers[1]) // numbers[2]), 0)
    inputs = {slot: _scalar(value, kind) for slot, value in values.items()}
    out = helper.add("range", inputs, attrs, dtype=kind, stop_gradient=True)
    if attrs:
        out.shape = (attrs["count"],)
    return out


@layer
def arange(
    start: float | Variable,
    end: float | Variable | None = None,
    step: float | Variable = 1,
    dtype: Any = None,
    name: str | None = None,
) -> Variable:
    """As `range`; from 0 if only one number is given."""
    del name
    begin, last = (0, start) if end is None else (start, end)
    return range(begin, last, step, "int64" if dtype is None else dtype)


@layer
def linspace(
    start: float | Variable, stop: float | Variable, num: int | Variable, dtype: Any
) -> Variable:
    """`num` numbers at equal distances, from start to stop."""
    helper = LayerHelper("linspace")
    kind = dtype_name(dtype)
    inputs = {"Start": _scalar(start, kind), "Stop": _scalar(stop, kind)}
    inputs["Num"] = _scalar(num, "int32")
    out = helper.add("linspace", inputs, {"dtype": kind}, dtype=kind, stop_gradient=True)
    out.shape = (-1 if isinstance(num, Variable) else num,)
    return out


@layer
def eye(
    num_rows: int,
    num_columns: int | None = None,
    batch_shape: Sequence[int] | None = None,
    dtype: Any = "float32",
) -> Variable:
    """1 on the diagonal, 0 elsewhere; repeated over batch_shape."""
    helper = LayerHelper("eye")
    attrs = {
        "num_rows": num_rows,
        "num_columns": num_rows if num_columns is None else num_columns,
        "batch_shape": list(batch_shape or ()),
        "dtype": dtype_name(dtype),
    }
    return helper.add("eye", {}, attrs, stop_gradient=True)


@layer
def randint(
    low: int,
    high: int | None = None,
    shape: Sizes | None = None,
    out: Variable | None = None,
    dtype: Any = None,
    device: str | None = None,
    stop_gradient: bool = False,
    seed: int = 0,
    name: str | None = None,
) -> Variable:
    """Whole numbers from low up to high, or from 0 up to low; drawn at each run."""
    del device
    helper = LayerHelper("randint", name)
    begin, end = (0, low) if high is None else (low, high)
    if begin >= end:
        raise helper.refuse(f"low {begin} must be below high {end}")
    inputs, attrs = sizes_of(helper, "shape", [1] if shape is None else shape, "Shape")
    kind = "int64" if dtype is None else dtype_name(dtype)
    attrs |= {"low": begin, "high": end, "seed": seed, "dtype": kind}
    return _into(out, helper.add("randint", inputs, attrs, dtype=kind), stop_gradient)


@layer
def randn(
    shape: Sizes,
    out: Variable | None = None,
    dtype: Any = None,
    device: str | None = None,
    stop_gradient: bool = True,
    name: str | None = None,
) -> Variable:
    """Normally distributed with mean 0 and deviation 1; drawn at each run."""
    del device
    helper = LayerHelper("randn", name)
    inputs, attrs = sizes_of(helper, "shape", shape, "Shape")
    kind = "float32" if dtype is None else dtype_name(dtype)
    attrs |= {"mean": 0.0, "std": 1.0, "seed": 0, "dtype": kind}
    return _into(out, helper.add("gaussian_random", inputs, attrs, dtype=kind), stop_gradient)


@layer
def randperm(
    n: int,
    out: Variable | None = None,
    dtype: Any = "int64",
    device: str | None = None,
    stop_gradient: bool = True,
    seed: int = 0,
) -> Variable:
    """The numbers 0..n-1 in a random order."""
    del device
    helper = LayerHelper("randperm")
    attrs = {"n": n, "seed": seed, "dtype": dtype_name(dtype)}
    return _into(out, helper.add("randperm", {}, attrs, dtype=dtype_name(dtype)), stop_gradient)


def _random_like(
    type: str,
    input: Variable,
    shape: Sequence[int],
    indices: tuple[int, int],
    dtype: Any,
    **settings: float,
) -> Variable:
    helper = LayerHelper(type)
    attrs = {
        "shape": list(shape),
        "input_dim_idx": indices[0],
        "output_dim_idx": indices[1],
        "dtype": dtype_name(dtype),
        **settings,
    }
    return helper.add(type, {"Input": helper.check_input(input)}, attrs, stop_gradient=True)


@layer
def uniform_random_batch_size_like(
    input: Variable,
    shape: Sequence[int],
    dtype: Any = "float32",
    input_dim_idx: int = 0,
    output_dim_idx: int = 0,
    min: float = -1.0,
    max: float = 1.0,
    seed: int = 0,
) -> Variable:
    """Evenly spread; one size is that of `input`."""
    indices = (input_dim_idx, output_dim_idx)
    return _random_like(
        "uniform_random_batch_size_like",
        input,
        shape,
        indices,
        dtype,
        min=min,
        max=max,
        seed=seed,
    )


@layer
def gaussian_random_batch_size_like(
    input: Variable,
    shape: Sequence[int],
    input_dim_idx: int = 0,
    output_dim_idx: int = 0,
    mean: float = 0.0,
    std: float = 1.0,
    seed: int = 0,
    dtype: Any = "float32",
) -> Variable:
    """Normally distributed; one size is that of `input`."""
    indices = (input_dim_idx, output_dim_idx)
    return _random_like(
        "gaussian_random_batch_size_like",
        input,
        shape,
        indices,
        dtype,
        mean=mean,
        std=std,
        seed=seed,
    )


@layer
def sampling_id(
    x: Variable, min: float = 0.0, max: float = 1.0, seed: int = 0, dtype: Any = "float32"
) -> Variable:
    """A column for each row of probabilities [N, C], drawn by them: int64[N]."""
    del dtype
    helper = LayerHelper("sampling_id")
    attrs = {"min": min, "max": max, "seed": seed}
    return helper.add(
        "sampling_id", {"X": helper.check_input(x, "x")}, attrs, dtype="int64", stop_gradient=True
    )


@layer
def random_crop(x: Variable, shape: Sequence[int], seed: int | None = None) -> Variable:
    """A part of this shape of each example, at a random place."""
    helper = LayerHelper("random_crop")
    attrs = {"shape": list(shape), "seed": seed or 0}
    return helper.add("random_crop", {"X": helper.check_input(x, "x")}, attrs, dtype=x.dtype)
