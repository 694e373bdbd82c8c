"""The same elements in other shapes and types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from sparsefleet.fluid.lowering.registry import op

Tensor = torch.Tensor


@op("cast", "X")
def cast(x: Tensor, *, out_dtype: str) -> Tensor:
    return x.to(getattr(torch, out_dtype))


@op("reshape2", "X")
def reshape(x: Tensor, *, shape: Sequence[int]) -> Tensor:
    """0 in `shape` takes the size that x has there, -1 what is left."""
    return x.reshape([x.shape[place] if size == 0 else size for place, size in enumerate(shape)])


@op("transpose2", "X")
def transpose(x: Tensor, *, axis: Sequence[int]) -> Tensor:
    if len(axis) != x.dim():
        raise ValueError(f"perm has {len(axis)} axes, wanted {x.dim()}")
    return x.permute(*axis)


@op("squeeze2", "X")
def squeeze(x: Tensor, *, axes: Sequence[int] = ()) -> Tensor:
    if not axes:
        return x.squeeze()
    return x.squeeze(tuple(axis % x.dim() for axis in axes))


@op("unsqueeze2", "X")
def unsqueeze(x: Tensor, *, axes: Sequence[int]) -> Tensor:
    for axis in axes:
        x = x.unsqueeze(axis)
    return x


@op("flatten2", "X")
def flatten(x: Tensor, *, axis: int = 1) -> Tensor:
    rows = 1
    for size in x.shape[:axis]:
        rows *= size
    return x.reshape(rows, -1) if x.numel() else x.reshape(rows, 0)


@op("concat", "X*")
def concat(tensors: list[Tensor], *, axis: int = 0) -> Tensor:
    return torch.cat(tensors, axis)


@op("stack", "X*", "Y")
def stack(tensors: list[Tensor], *, axis: int = 0) -> Tensor:
    return torch.stack(tensors, axis)


@op("split", "X", "Out*")
def split(
    x: Tensor, *, axis: int = 0, num: int = 0, sections: Sequence[int] = ()
) -> list[list[Tensor]]:
    if num:
        if x.shape[axis] % num:
            raise ValueError(f"size {x.shape[axis]} of axis {axis} is not divisible by {num}")
        return [list(x.chunk(num, axis))]
    sizes = list(sections)
    if -1 in sizes:
        sizes[sizes.index(-1)] = x.shape[axis] - sum(size for size in sizes if size >= 0)
    return [list(torch.split_with_sizes(x, sizes, axis))]


@op("unstack", "X", "Y*")
def unstack(x: Tensor, *, axis: int = 0) -> list[list[Tensor]]:
    return [list(x.unbind(axis))]


@op("expand", "X")
def expand(x: Tensor, *, expand_times: Sequence[int]) -> Tensor:
    """Repeats it so often along each axis."""
    if len(expand_times) != x.dim():
        raise ValueError(f"expand_times has {len(expand_times)} numbers, wanted {x.dim()}")
    return x.repeat(*expand_times)


def _slice_shape(
    shape: tuple[int, ...], *, axes: Sequence[int], starts: Sequence[int], ends: Sequence[int]
) -> list[tuple[int, ...]]:
    sizes = list(shape)
    for axis, start, end in zip(axes, starts, ends, strict=True):
        # Of an open size nothing is known: it may be smaller than the slice.
        if sizes[axis] >= 0:
            sizes[axis] = len(range(*slice(start, end).indices(sizes[axis])))
    return [tuple(sizes)]


@op("slice", "Input", infer=_slice_shape)
def slice_axes(
    x: Tensor, *, axes: Sequence[int], starts: Sequence[int], ends: Sequence[int]
) -> Tensor:
    for axis, start, end in zip(axes, starts, ends, strict=True):
        x = x[(slice(None),) * axis + (slice(start, end),)]
    return x


@op("shape", "Input", lod="none")
def shape(x: Tensor) -> Tensor:
    return torch.tensor(x.shape, dtype=torch.int32, device=x.device)


@op("assign", "X")
def assign(x: Any) -> Any:
    """A copy; of an array of tensors, one that can grow apart."""
    return list(x) if isinstance(x, list) else x.clone()


@op("pad", "X")
def pad(x: Tensor, *, paddings: Sequence[int], pad_value: float = 0.0) -> Tensor:
    """paddings: before and after, axis by axis."""
    pairs = [paddings[place : place + 2] for place in range(0, len(paddings), 2)]
    flat = [size for pair in reversed(pairs) for size in pair]
    return torch.nn.functional.pad(x, flat, value=pad_value)


@op("reverse", "X")
def reverse(x: Tensor, *, axis: Sequence[int]) -> Tensor:
    return x.flip(list(axis))
