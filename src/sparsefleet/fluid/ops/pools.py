"""The largest or the average value of each window of [N, C, ...]."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.nn import functional

from sparsefleet.fluid.lowering.registry import op
from sparsefleet.fluid.ops.windows import channels_first, channels_last, pad_sides, window_sides

Tensor = torch.Tensor
Numbers = Sequence[int]

_MAX: dict[int, Callable[..., Tensor]] = {2: functional.max_pool2d, 3: functional.max_pool3d}
_MEAN: dict[int, Callable[..., Tensor]] = {2: functional.avg_pool2d, 3: functional.avg_pool3d}


def _register(type: str, rank: int) -> None:
    @op(type, "X", lod="none")
    def run(
        x: Tensor,
        *,
        pooling_type: str,
        ksize: Numbers,
        strides: Numbers,
        paddings: Numbers | str,
        global_pooling: bool = False,
        ceil_mode: bool = False,
        exclusive: bool = True,
        data_format: str = "NCHW",
    ) -> Tensor:
        """exclusive: the average leaves borders out."""
        x = channels_first(x, data_format)
        axes = tuple(range(2, 2 + rank))
        if global_pooling:
            out = x.amax(axes, True) if pooling_type == "max" else x.mean(axes, True)
        else:
            sides = window_sides(x, paddings, ksize, strides)
            sides = _widened(x, sides, ksize, strides) if ceil_mode else sides
            is_max = pooling_type == "max"
            out = (_largest if is_max else _average)(rank, x, sides, ksize, strides, exclusive)
        return channels_last(out, data_format)


def _widened(
    x: Tensor, sides: Sequence[tuple[int, int]], ksize: Numbers, strides: Numbers
) -> list[tuple[int, int]]:
    """With so much border behind that a last window that is not full fits."""
    found = []
    for size, (before, after), span, stride in zip(x.shape[2:], sides, ksize, strides, strict=True):
        steps = -(-(size + before + after - span) // stride)
        found.append((before, steps * stride + span - size - before))
    return found


def _largest(
    rank: int,
    x: Tensor,
    sides: Sequence[tuple[int, int]],
    ksize: Numbers,
    strides: Numbers,
    exclusive: bool,
) -> Tensor:
    del exclusive
    low = torch.finfo(x.dtype).min
    return _MAX[rank](pad_sides(x, sides, low), tuple(ksize), tuple(strides))


def _average(
    rank: int,
    x: Tensor,
    sides: Sequence[tuple[int, int]],
    ksize: Numbers,
    strides: Numbers,
    exclusive: bool,
) -> Tensor:
    means = _MEAN[rank](pad_sides(x, sides), tuple(ksize), tuple(strides))
    if not exclusive or not any(number for pair in sides for number in pair):
        return means
    inside = pad_sides(torch.ones_like(x[:1, :1]), sides)
    return means / _MEAN[rank](inside, tuple(ksize), tuple(strides))


_register("pool2d", 2)
_register("pool3d", 3)


def _spans(size: int, count: int) -> list[tuple[int, int]]:
    return [(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]


@op("adaptive_pool", "X", lod="none")
def adaptive_pool(x: Tensor, *, ksize: Numbers, pooling_type: str) -> Tensor:
    """Windows of nearly equal sizes, so many as wanted along each axis."""
    for axis, count in enumerate(ksize, start=2):
        parts = [x.narrow(axis, begin, end - begin) for begin, end in _spans(x.shape[axis], count)]
        if pooling_type == "max":
            parts = [part.amax(axis, keepdim=True) for part in parts]
        else:
            parts = [part.mean(axis, keepdim=True) for part in parts]
        x = torch.cat(parts, axis)
    return x


def _indexed(shape: tuple[int, ...], *, ksize: Numbers) -> list[tuple[int, ...]]:
    return [(*shape[:2], *ksize)] * 2


@op("max_pool_with_index", "X", "Out Mask", lod="none", infer=_indexed)
def max_pool_with_index(x: Tensor, *, ksize: Numbers) -> list[Tensor]:
    """Adaptive largest values, and the place of each in its flat picture: int32."""
    pool = (
        functional.adaptive_max_pool2d_with_indices
        if len(ksize) == 2
        else functional.adaptive_max_pool3d_with_indices
    )
    values, places = pool(x, tuple(ksize))  # type: ignore[arg-type]
    return [values, places.int()]
