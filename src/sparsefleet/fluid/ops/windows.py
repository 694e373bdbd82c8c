"""Windows that go over pictures and volumes [N, C, ...]: borders and orders of axes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

__all__ = ["channels_first", "channels_last", "pad_sides", "window_sides"]

Tensor = torch.Tensor
Sides = Sequence[tuple[int, int]]


def channels_first(x: Tensor, data_format: str) -> Tensor:
    """[N, ..., C] as [N, C, ...], if that is its format."""
    return x.movedim(-1, 1) if data_format in ("NHWC", "NDHWC") else x


def channels_last(x: Tensor, data_format: str) -> Tensor:
    """The way back."""
    return x.movedim(1, -1) if data_format in ("NHWC", "NDHWC") else x


def window_sides(
    x: Tensor,
    paddings: Sequence[int] | str,
    spans: Sequence[int],
    strides: Sequence[int],
) -> list[tuple[int, int]]:
    """Border before and after along each axis of a picture.

    paddings: before and after, axis by axis; "SAME" so that ceil(size / stride) windows fit.
    """
    if paddings == "VALID":
        return [(0, 0)] * len(spans)
    if paddings != "SAME":
        numbers = [int(number) for number in paddings]
        return [(numbers[i], numbers[i + 1]) for i in range(0, len(numbers), 2)]
    found = []
    for size, span, stride in zip(x.shape[2:], spans, strides, strict=True):
        total = max((-(-size // stride) - 1) * stride + span - size, 0)
        found.append((total // 2, total - total // 2))
    return found


def pad_sides(x: Tensor, sides: Sides, value: float = 0.0) -> Tensor:
    """With borders; negative ones cut."""
    flat = [number for pair in reversed(sides) for number in pair]
    return functional.pad(x, flat, value=value) if any(flat) else x
