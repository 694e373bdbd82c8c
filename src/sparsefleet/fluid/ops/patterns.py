"""Tensors with a pattern, or random, in a size that is known or that of another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from sparsefleet.fluid.lowering.registry import Shape, op
from sparsefleet.fluid.ops.filling import sizes_like
from sparsefleet.fluid.ops.sizes import open_sizes, run_sizes

Tensor = torch.Tensor


@op("fill_any_like", "X")
def fill_any_like(x: Tensor, *, value: float, dtype: str | None = None) -> Tensor:
    return torch.full_like(x, value, dtype=None if dtype is None else getattr(torch, dtype))


def _unknown(*shapes: Any, **settings: Any) -> list[Shape]:
    del shapes
    return [(settings.get("count", -1),)]


@op("range", "Start End Step", lod="none", infer=_unknown)
def arange(start: Tensor, end: Tensor, step: Tensor) -> Tensor:
    """From start up to end, which is not in it."""
    values = (start.item(), end.item(), step.item())
    return torch.from_numpy(np.arange(*values)).to(start.device, start.dtype)


@op("linspace", "Start Stop Num", lod="none", infer=_unknown)
def linspace(start: Tensor, stop: Tensor, count: Tensor, *, dtype: str = "float32") -> Tensor:
    return torch.linspace(float(start), float(stop), int(count), dtype=getattr(torch, dtype))


@op("eye", "", lod="none")
def eye(
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
def randint(
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
def randperm(*, n: int, dtype: str = "int64", generator: torch.Generator | None = None) -> Tensor:
    return torch.randperm(n, generator=generator).to(getattr(torch, dtype))


@op("uniform_random_batch_size_like", "Input", lod="function")
def uniform_random_batch_size_like(
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
def gaussian_random_batch_size_like(
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
def sampling_id(
    x: Tensor,
    *,
    min: float = 0.0,
    max: float = 1.0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """A column for each row of probabilities [N, C], drawn by them: int64[N]."""
    drawn = torch.empty(len(x), 1).uniform_(min, max, generator=generator)
    passed = (x.detach().cumsum(1) < drawn).sum(1)
    return passed.clamp(max=x.shape[1] - 1)


@op(
    "random_crop",
    "X",
    lod="none",
    infer=lambda x, **settings: [(*x[: len(x) - len(settings["shape"])], *settings["shape"])],
)
def random_crop(
    x: Tensor, *, shape: Sequence[int], generator: torch.Generator | None = None
) -> Tensor:
    """A part of this shape of each example, each at its own place."""
    lead = x.shape[: x.dim() - len(shape)]
    flat = x.reshape(-1, *x.shape[len(lead) :])
    parts = []
    for example in flat:
        for axis, size in enumerate(shape):
            room = example.shape[axis] - size
            if room < 0:
                raise ValueError(f"{list(shape)} is larger than {list(x.shape)}")
            begin = int(torch.randint(room + 1, (1,), generator=generator))
            example = example.narrow(axis, begin, size)
        parts.append(example)
    return torch.stack(parts).reshape(*lead, *shape)


@op("shuffle_batch", "X", "Out ShuffleIdx", infer=lambda x: [x, (-1,)])
def shuffle_batch(x: Tensor, *, generator: torch.Generator | None = None) -> list[Tensor]:
    """Rows, all axes but the last, in a random order; and which row came where."""
    rows = x.reshape(-1, x.shape[-1])
    order = torch.randperm(len(rows), generator=generator)
    return [rows[order].reshape(x.shape), order]
