"""Layers that create variables filled with a pattern or with random values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.framework.dtypes import dtype_name
from sparsefleet.fluid.lowering.registry import Shape, op
from sparsefleet.fluid.operators.filling import fill_constant, sizes_like
from sparsefleet.fluid.operators.layer_helper import LayerHelper, layer
from sparsefleet.fluid.operators.sizes import Sizes, open_sizes, run_sizes, sizes_of

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

Tensor = torch.Tensor


@op("fill_any_like", "X")
def fill_any_like(x: Tensor, *, value: float, dtype: str | None = None) -> Tensor:
    return torch.full_like(x, value, dtype=None if dtype is None else getattr(torch, dtype))


def _unknown(*shapes: Any, **settings: Any) -> list[Shape]:
    del shapes
    return [(settings.get("count", -1),)]


@op("range", "Start End Step", lod="none", infer=_unknown)
def arange_op(start: Tensor, end: Tensor, step: Tensor) -> Tensor:
    """Return numbers from start up to, but not including, end."""
    values = (start.item(), end.item(), step.item())
    return torch.from_numpy(np.arange(*values)).to(start.device, start.dtype)


@op("linspace", "Start Stop Num", lod="none", infer=_unknown)
def linspace_op(start: Tensor, stop: Tensor, count: Tensor, *, dtype: str = "float32") -> Tensor:
    return torch.linspace(float(start), float(stop), int(count), dtype=getattr(torch, dtype))


@op("eye", "", lod="none")
def eye_op(
    *,
    num_rows: int,
    num_columns: int,
    batch_shape: Sequence[int] = (),
    dtype: str = "float32",
    device: str = "cpu",
) -> Tensor:
    one = torch.eye(num_rows, num_columns, dtype=getattr(torch, dtype), device=device)
    return one.expand(*batch_shape, num_rows, num_columns).clone() if batch_shape else one


def _given_shape(whole: Shape | None, parts: Any, **settings: Any) -> list[Shape]:
    del parts
    return [tuple(open_sizes(settings["shape"], whole, settings.get("shape_places", ())))]


@op("randint", "ShapeTensor? ShapeTensorList*", lod="none", infer=_given_shape)
def randint_op(
    shape_tensor: Tensor | None,
    parts: list[Tensor],
    *,
    shape: Sequence[int],
    shape_places: Sequence[int] = (),
    low: int,
    high: int,
    dtype: str = "int64",
    generator: torch.Generator | None = None,
) -> Tensor:
    sizes = run_sizes(shape, shape_tensor, parts, shape_places)
    return torch.randint(low, high, sizes, generator=generator, dtype=getattr(torch, dtype))


@op("randperm", "", lod="none", infer=lambda **settings: [(settings["n"],)])
def randperm_op(
    *, n: int, dtype: str = "int64", generator: torch.Generator | None = None
) -> Tensor:
    return torch.randperm(n, generator=generator).to(getattr(torch, dtype))


@op("uniform_random_batch_size_like", "Input", lod="function")
def uniform_random_batch_size_like_op(
    like: Tensor,
    *,
    shape: Sequence[int],
    input_dim_idx: int = 0,
    output_dim_idx: int = 0,
    min: float = -1.0,
    max: float = 1.0,
    dtype: str = "float32",
    lods: list[Any] | None = None,
    generator: torch.Generator | None = None,
) -> Any:
    sizes = sizes_like(like, lods, shape, input_dim_idx, output_dim_idx)
    made = torch.empty(sizes, dtype=getattr(torch, dtype), device=like.device)
    made.uniform_(min, max, generator=generator)
    return made if lods is None else (made, ())


@op("gaussian_random_batch_size_like", "Input", lod="function")
def gaussian_random_batch_size_like_op(
    like: Tensor,
    *,
    shape: Sequence[int],
    input_dim_idx: int = 0,
    output_dim_idx: int = 0,
    mean: float = 0.0,
    std: float = 1.0,
    dtype: str = "float32",
    lods: list[Any] | None = None,
    generator: torch.Generator | None = None,
) -> Any:
    sizes = sizes_like(like, lods, shape, input_dim_idx, output_dim_idx)
    made = torch.empty(sizes, dtype=getattr(torch, dtype), device=like.device)
    made.normal_(mean, std, generator=generator)
    return made if lods is None else (made, ())


def _one_a_row(x: Shape, **settings: Any) -> list[Shape]:
    del settings
    return [(x[0],)]


@op("sampling_id", "X", lod="none", infer=_one_a_row)
def sampling_id_op(
    x: Tensor,
    *,
    min: float = 0.0,
    max: float = 1.0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Sample a column for each row of probabilities [N, C]: int64[N]."""
    drawn = torch.empty(len(x), 1).uniform_(min, max, generator=generator)
    passed = (x.detach().cumsum(1) < drawn).sum(1)
    return passed.clamp(max=x.shape[1] - 1)


@op(
    "random_crop",
    "X",
    lod="none",
    infer=lambda x, **settings: [(*x[: len(x) - len(settings["shape"])], *settings["shape"])],
)
def random_crop_op(
    x: Tensor, *, shape: Sequence[int], generator: torch.Generator | None = None
) -> Tensor:
    """Crop each example to this shape at its own random position."""
    lead = x.shape[: x.dim() - len(shape)]
    flat = x.reshape(-1, *x.shape[len(lead) :])
    parts = []
    for example in flat:
        for axis, size in enumerate(shape):
            room = example.shape[axis] - size
            if room < 0:
                raise ValueError(f"shape {list(shape)} must not exceed {list(x.shape)}")
            begin = int(torch.randint(room + 1, (1,), generator=generator))
            example = example.narrow(axis, begin, size)
        parts.append(example)
    return torch.stack(parts).reshape(*lead, *shape)


@op("shuffle_batch", "X", "Out ShuffleIdx", infer=lambda x: [x, (-1,)])
def shuffle_batch(x: Tensor, *, generator: torch.Generator | None = None) -> list[Tensor]:
    """Shuffle rows (all axes but the last); also return the permutation."""
    rows = x.reshape(-1, x.shape[-1])
    order = torch.randperm(len(rows), generator=generator)
    return [rows[order].reshape(x.shape), order]


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
    """Return a variable of this shape, filled with one number."""
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
    """Return a variable of the input's shape, filled with one number."""
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
    """Return the numbers from start up to, but not including, end, in increments of step."""
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
    """Return the same numbers as `range`, starting from 0 if only one number is given."""
    del name
    begin, last = (0, start) if end is None else (start, end)
    return range(begin, last, step, "int64" if dtype is None else dtype)


@layer
def linspace(
    start: float | Variable, stop: float | Variable, num: int | Variable, dtype: Any
) -> Variable:
    """Return `num` evenly spaced numbers from start to stop."""
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
    """Return an identity matrix, or a batch of them with leading shape `batch_shape`."""
    helper = LayerHelper("eye")
    for what, size in (("num_rows", num_rows), ("num_columns", num_columns)):
        if size is not None and (not isinstance(size, int) or size < 0):
            raise TypeError(f"{what} must be an int >= 0, got {size!r}")
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
    """Draw integers from low up to high, or from 0 up to low if high is None, in each run."""
    del device
    helper = LayerHelper("randint", name)
    begin, end = (0, low) if high is None else (low, high)
    if begin >= end:
        raise helper.refuse(f"low {begin} must be less than high {end}")
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
    """Draw from the standard normal distribution in each run."""
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
    """Return the numbers 0..n-1 in random order."""
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
    """Draw from a uniform distribution; one size is taken from `input`."""
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
    """Draw from a normal distribution; one size is taken from `input`."""
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
    """Sample a column for each row of probabilities [N, C]: int64[N]."""
    del dtype
    helper = LayerHelper("sampling_id")
    attrs = {"min": min, "max": max, "seed": seed}
    return helper.add(
        "sampling_id", {"X": helper.check_input(x, "x")}, attrs, dtype="int64", stop_gradient=True
    )


@layer
def random_crop(x: Variable, shape: Sequence[int], seed: int | None = None) -> Variable:
    """Crop each example to this shape at a random position."""
    helper = LayerHelper("random_crop")
    attrs = {"shape": list(shape), "seed": seed or 0}
    return helper.add("random_crop", {"X": helper.check_input(x, "x")}, attrs, dtype=x.dtype)
