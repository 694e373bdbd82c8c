"""Convolutions over [N, C, ...] in two and three dimensions, and their transposes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

from sparsefleet.fluid.lowering.registry import op
from sparsefleet.fluid.ops.windows import channels_first, channels_last, pad_sides, window_sides

Tensor = torch.Tensor
Numbers = Sequence[int]

_CONVOLVE: dict[int, Callable[..., Tensor]] = {2: functional.conv2d, 3: functional.conv3d}
_TRANSPOSE: dict[int, Callable[..., Tensor]] = {
    2: functional.conv_transpose2d,
    3: functional.conv_transpose3d,
}


def _convolution(type: str, rank: int) -> None:
    @op(type, "Input Filter", "Output", lod="none")
    def run(
        x: Tensor,
        weight: Tensor,
        *,
        strides: Numbers,
        paddings: Numbers | str,
        dilations: Numbers,
        groups: int = 1,
        data_format: str = "NCHW",
    ) -> Tensor:
        x = channels_first(x, data_format)
        spans = [d * (k - 1) + 1 for k, d in zip(weight.shape[2:], dilations, strict=True)]
        x = pad_sides(x, window_sides(x, paddings, spans, strides))
        out = _CONVOLVE[rank](x, weight, None, tuple(strides), 0, tuple(dilations), groups)
        return channels_last(out, data_format)


_convolution("conv2d", 2)
_convolution("depthwise_conv2d", 2)
_convolution("conv3d", 3)


def _transposed(type: str, rank: int) -> None:
    @op(type, "Input Filter", "Output", lod="none")
    def run(
        x: Tensor,
        weight: Tensor,
        *,
        strides: Numbers,
        paddings: Numbers | str,
        dilations: Numbers,
        groups: int = 1,
        output_size: Numbers = (),
        data_format: str = "NCHW",
    ) -> Tensor:
        """The whole result without its borders; output_size says how much of the end stays."""
        x = channels_first(x, data_format)
        spans = [d * (k - 1) + 1 for k, d in zip(weight.shape[2:], dilations, strict=True)]
        sides = window_sides(x, paddings, spans, strides)
        sizes = [
            (size - 1) * stride + span - before - after
            for size, stride, span, (before, after) in zip(
                x.shape[2:], strides, spans, sides, strict=True
            )
        ]
        wanted = list(output_size) or sizes
        if any(
            not 0 <= w - s < stride for w, s, stride in zip(wanted, sizes, strides, strict=True)
        ):
            raise ValueError(
                f"output_size {wanted} must be {sizes}, or above it by less than the stride "
                f"{list(strides)}"
            )
        extra = [w - s for w, s in zip(wanted, sizes, strict=True)]
        settings: dict[str, Any] = {"groups": groups, "dilation": tuple(dilations)}
        out = _TRANSPOSE[rank](x, weight, stride=tuple(strides), **settings)
        out = pad_sides(
            out,
            [(-before, more - after) for (before, after), more in zip(sides, extra, strict=True)],
        )
        return channels_last(out, data_format)


_transposed("conv2d_transpose", 2)
_transposed("depthwise_conv2d_transpose", 2)
_transposed("conv3d_transpose", 3)
