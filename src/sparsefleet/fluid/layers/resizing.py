"""Pictures and volumes of other sizes."""

from __future__ import annotations

from typing import Any

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.layer_helper import LayerHelper, layer
from sparsefleet.fluid.layers.sizes import Sizes, sizes_of

__all__ = [
    "image_resize",
    "image_resize_short",
    "interpolate",
    "resize_bilinear",
    "resize_nearest",
    "resize_trilinear",
]

_METHODS = {"BILINEAR": ("linear", 2), "NEAREST": ("nearest", 2), "TRILINEAR": ("linear", 3)}
_FORMATS = {2: ("NCHW", "NHWC"), 3: ("NCDHW", "NDHWC")}


@layer
def image_resize(
    input: Variable,
    out_shape: Sizes | None = None,
    scale: float | Variable | None = None,
    name: str | None = None,
    resample: str = "BILINEAR",
    actual_shape: Variable | None = None,
    align_corners: bool = True,
    align_mode: int = 1,
    data_format: str = "NCHW",
) -> Variable:
    """Pictures of size `out_shape`, or `scale` times as large.

    resample: "BILINEAR", "NEAREST", or "TRILINEAR" for volumes.
    align_corners: the corners of both pictures are the same points. If not, align_mode 0 lets the
        centres of pixels meet, 1 their corners.
    """
    if resample not in _METHODS:
        helper = LayerHelper("image_resize", name)
        raise helper.refuse(f"resample must be one of {', '.join(_METHODS)}, got {resample!r}")
    method, rank = _METHODS[resample]
    helper = LayerHelper(f"{resample.lower()}_interp", name)
    if len(helper.check_input(input).shape) != rank + 2 or data_format not in _FORMATS[rank]:
        raise helper.refuse(f"{resample} takes {' or '.join(_FORMATS[rank])}, got {input}")
    if align_mode not in (0, 1) or (out_shape is None and scale is None):
        raise helper.refuse("out_shape or scale must be given; align_mode is 0 or 1")
    inputs: dict[str, Any] = {"X": input}
    attrs: dict[str, Any] = {
        "method": method,
        "align_corners": align_corners,
        "align_mode": align_mode,
        "data_format": data_format,
    }
    if out_shape is not None:
        found, sizes = sizes_of(helper, "out_shape", out_shape, "OutShape")
        inputs |= found
        attrs |= sizes
    elif isinstance(scale, Variable):
        inputs["Scale"] = scale
    else:
        attrs["scale"] = float(scale or 0.0)
    if actual_shape is not None:
        inputs["OutShapeTensor"] = helper.check_input(actual_shape, "actual_shape")
    return helper.add("interpolate", inputs, attrs)


interpolate = image_resize


@layer
def resize_bilinear(
    input: Variable,
    out_shape: Sizes | None = None,
    scale: float | Variable | None = None,
    name: str | None = None,
    actual_shape: Variable | None = None,
    align_corners: bool = True,
    align_mode: int = 1,
    data_format: str = "NCHW",
) -> Variable:
    """`image_resize` with lines between neighbours."""
    return image_resize(
        input,
        out_shape,
        scale,
        name,
        "BILINEAR",
        actual_shape,
        align_corners,
        align_mode,
        data_format,
    )


@layer
def resize_trilinear(
    input: Variable,
    out_shape: Sizes | None = None,
    scale: float | Variable | None = None,
    name: str | None = None,
    actual_shape: Variable | None = None,
    align_corners: bool = True,
    align_mode: int = 1,
    data_format: str = "NCDHW",
) -> Variable:
    """`image_resize` of volumes."""
    return image_resize(
        input,
        out_shape,
        scale,
        name,
        "TRILINEAR",
        actual_shape,
        align_corners,
        align_mode,
        data_format,
    )


@layer
def resize_nearest(
    input: Variable,
    out_shape: Sizes | None = None,
    scale: float | Variable | None = None,
    name: str | None = None,
    actual_shape: Variable | None = None,
    align_corners: bool = True,
    data_format: str = "NCHW",
) -> Variable:
    """`image_resize` by the nearest pixel."""
    return image_resize(
        input, out_shape, scale, name, "NEAREST", actual_shape, align_corners, 1, data_format
    )


@layer
def image_resize_short(input: Variable, out_short_len: int, resample: str = "BILINEAR") -> Variable:
    """So that the shorter side has `out_short_len` pixels."""
    helper = LayerHelper("image_resize_short")
    sizes = list(helper.check_input(input).shape[2:])
    if len(sizes) != 2 or -1 in sizes:
        raise helper.refuse(f"takes pictures [N, C, H, W] of known size, got {input}")
    short = min(sizes)
    out_shape = [int(size * out_short_len / short + 0.5) for size in sizes]
    return image_resize(input, out_shape, resample=resample)
