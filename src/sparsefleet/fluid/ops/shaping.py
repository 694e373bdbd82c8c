"""The same elements in other shapes and types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from sparsefleet.collective.mixed_precision import half_dtype
from sparsefleet.collective.strategy import AmpConfig
from sparsefleet.fluid.lowering.lowered import Lod
from sparsefleet.fluid.lowering.registry import LodRule, Shape, op
from sparsefleet.fluid.ops.sizes import open_sizes, run_sizes

Tensor = torch.Tensor

_AMP = AmpConfig()


@op("cast", "X")
def cast(x: Tensor, *, out_dtype: str, by_place: bool = False) -> Tensor:
    """by_place: float16 is what the device computes well with, on a CPU bfloat16."""
    is_chosen = by_place and out_dtype == "float16"
    return x.to(half_dtype(_AMP, x.device) if is_chosen else getattr(torch, out_dtype))


def _reshaped(
    x: Shape, whole: Shape | None, parts: list[Shape], **settings: Any
) -> list[Shape] | None:
    if whole is None and not parts:
        return None
    given = settings["shape"]
    sizes = open_sizes(given, whole, settings.get("shape_places", ()))
    return [tuple(x[place] if size == 0 else size for place, size in enumerate(sizes))]


@op("reshape2", "X ShapeTensor? ShapeTensorList*", lod="rows", infer=_reshaped)
def reshape(
    x: Tensor,
    shape_tensor: Tensor | None,
    parts: list[Tensor],
    *,
    shape: Sequence[int] = (),
    shape_places: Sequence[int] = (),
) -> Tensor:
    """0 in `shape` takes the size that x has there, -1 what is left."""
    sizes = run_sizes(shape, shape_tensor, parts, shape_places)
    return x.reshape([x.shape[place] if size == 0 else size for place, size in enumerate(sizes)])


@op("transpose2", "X", lod="none")
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


def _concat_lod(attrs: Mapping[str, Any]) -> LodRule:
    return "share" if attrs.get("axis", 0) else "function"


@op("concat", "X*", lod=_concat_lod)
def concat(tensors: list[Tensor], *, axis: int = 0, lods: list[Any] | None = None) -> Any:
    """Along the first axis the sequences of all follow one another."""
    made = torch.cat(tensors, axis)
    return made if lods is None else (made, _joined(lods[0]))


def _joined(lods: list[Lod]) -> Lod:
    if not all(lods) or len({len(lod) for lod in lods}) != 1:
        return ()
    levels = []
    for parts in zip(*lods, strict=True):
        lengths = torch.cat([part.diff() for part in parts])
        levels.append(torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]))
    return tuple(levels)


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


@op("unstack", "X", "Y*", lod="none")
def unstack(x: Tensor, *, axis: int = 0) -> list[list[Tensor]]:
    return [list(x.unbind(axis))]


def _expanded(
    x: Shape, whole: Shape | None, parts: list[Shape], **settings: Any
) -> list[Shape] | None:
    if whole is None and not parts:
        return None
    times = open_sizes(settings["expand_times"], whole, settings.get("expand_times_places", ()))
    pairs = zip(x, times, strict=True)
    return [tuple(size * often if min(size, often) > 0 else -1 for size, often in pairs)]


@op("expand", "X ExpandTimesTensor? ExpandTimesTensorList*", infer=_expanded)
def expand(
    x: Tensor,
    times_tensor: Tensor | None,
    parts: list[Tensor],
    *,
    expand_times: Sequence[int] = (),
    expand_times_places: Sequence[int] = (),
) -> Tensor:
    """Repeats it so often along each axis."""
    times = run_sizes(expand_times, times_tensor, parts, expand_times_places)
    if len(times) != x.dim():
        raise ValueError(f"expand_times has {len(times)} numbers, wanted {x.dim()}")
    return x.repeat(*times)


@op("expand_as", "X target_tensor")
def expand_as(x: Tensor, target: Tensor) -> Tensor:
    """Repeated until it is as large as the target."""
    if any(size % part for size, part in zip(target.shape, x.shape, strict=True)):
        raise ValueError(f"{list(target.shape)} is not a multiple of {list(x.shape)}")
    return x.repeat(*(size // part for size, part in zip(target.shape, x.shape, strict=True)))


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


@op("reverse", "X", lod="none")
def reverse(x: Tensor, *, axis: Sequence[int]) -> Tensor:
    return x.flip(list(axis))
