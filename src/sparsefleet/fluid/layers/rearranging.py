"""Pixels and channels of pictures in other places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.layer_helper import LayerHelper, layer
from sparsefleet.fluid.layers.windows import Span, span

__all__ = [
    "affine_channel",
    "affine_grid",
    "grid_sampler",
    "pixel_shuffle",
    "shuffle_channel",
    "space_to_depth",
    "temporal_shift",
    "unfold",
]


@layer
def affine_channel(
    x: Variable,
    scale: Variable | None = None,
    bias: Variable | None = None,
    data_layout: str = "NCHW",
    name: str | None = None,
    act: str | None = None,
) -> Variable:
    """Each channel times its number in `scale`, plus that in `bias`."""
    helper = LayerHelper("affine_channel", name)
    inputs = {
        "X": helper.check_input(x, "x"),
        "Scale": helper.check_input(scale, "scale"),
        "Bias": helper.check_input(bias, "bias"),
    }
    return helper.activate(helper.add("affine_channel", inputs, {"data_layout": data_layout}), act)


@layer
def affine_grid(
    theta: Variable, out_shape: Variable | Sequence[int], name: str | None = None
) -> Variable:
    """Places for `grid_sampler` by matrices theta [N, 2, 3]: [N, H, W, 2]."""
    helper = LayerHelper("affine_grid", name)
    inputs, attrs = {"Theta": helper.check_input(theta, "theta")}, {}
    if isinstance(out_shape, Variable):
        inputs["OutputShape"] = out_shape
    else:
        attrs["output_shape"] = list(out_shape)
    return helper.add("affine_grid", inputs, attrs, slot="Output")


@layer
def grid_sampler(x: Variable, grid: Variable, name: str | None = None) -> Variable:
    """The values of pictures at places in -1..1: grid [N, H, W, 2]."""
    helper = LayerHelper("grid_sampler", name)
    inputs = {"X": helper.check_input(x, "x"), "Grid": helper.check_input(grid, "grid")}
    return helper.add("grid_sampler", inputs, slot="Output")


def _add(type: str, x: Variable, name: str | None = None, **attrs: Any) -> Variable:
    helper = LayerHelper(type, name)
    return helper.add(type, {"X": helper.check_input(x, "x")}, attrs)


@layer
def pixel_shuffle(x: Variable, upscale_factor: int) -> Variable:
    """Channels as pixels: [N, C * r * r, H, W] -> [N, C, H * r, W * r]."""
    return _add("pixel_shuffle", x, upscale_factor=upscale_factor)


@layer
def space_to_depth(x: Variable, blocksize: int, name: str | None = None) -> Variable:
    """Pixels as channels: [N, C, H, W] -> [N, C * b * b, H / b, W / b]."""
    return _add("space_to_depth", x, name, blocksize=blocksize)


@layer
def shuffle_channel(x: Variable, group: int, name: str | None = None) -> Variable:
    """The first channel of each group, then the second of each, and so on."""
    return _add("shuffle_channel", x, name, group=group)


@layer
def temporal_shift(
    x: Variable, seg_num: int, shift_ratio: float = 0.25, name: str | None = None
) -> Variable:
    """Some channels of [N * seg_num, C, H, W] a step earlier, some a step later."""
    return _add("temporal_shift", x, name, seg_num=seg_num, shift_ratio=shift_ratio)


@layer
def unfold(
    x: Variable,
    kernel_sizes: Span,
    strides: Span = 1,
    paddings: Span = 0,
    dilations: Span = 1,
    name: str | None = None,
) -> Variable:
    """Windows of pictures as columns: [N, C * window, windows]."""
    helper = LayerHelper("unfold", name)
    borders = [paddings] * 4 if isinstance(paddings, int) else list(paddings)
    if len(borders) == 2:
        borders *= 2
    if len(borders) != 4:
        raise helper.refuse(f"paddings must be a number, two or four, got {paddings!r}")
    attrs = {
        "kernel_sizes": span(helper, kernel_sizes, 2, "kernel_sizes"),
        "strides": span(helper, strides, 2, "strides"),
        "paddings": borders,
        "dilations": span(helper, dilations, 2, "dilations"),
    }
    return helper.add("unfold", {"X": helper.check_input(x, "x")}, attrs, slot="Y")
