"""Prior boxes (anchors), the boxes around each feature map position that a detector starts from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.lowering.registry import Shape, op
from sparsefleet.fluid.operators.layer_helper import LayerHelper, layer, op_settings

__all__ = ["anchor_generator", "density_prior_box", "prior_box"]

Tensor = torch.Tensor
_VARIANCE = (0.1, 0.1, 0.2, 0.2)


def _boxes_and_variances(
    boxes: Tensor, variances: Sequence[float], clip: bool
) -> tuple[Tensor, Tensor]:
    boxes = boxes.clamp(0, 1) if clip else boxes
    return boxes, torch.tensor(list(variances), dtype=boxes.dtype).expand_as(boxes).clone()


def _ratios(aspect_ratios: Sequence[float], flip: bool) -> list[float]:
    found = [1.0]
    for ratio in aspect_ratios:
        if all(abs(ratio - known) > 1e-6 for known in found):
            found += [ratio, 1.0 / ratio] if flip else [ratio]
    return found


def _prior_sizes(settings: dict[str, Any]) -> list[tuple[float, float]]:
    """Return the half-widths and half-heights of a position's priors."""
    ratios = _ratios(settings["aspect_ratios"], settings["flip"])
    sizes: list[tuple[float, float]] = []
    for number, small in enumerate(settings["min_sizes"]):
        plain = [(small / 2, small / 2)]
        large = []
        if settings["max_sizes"]:
            side = math.sqrt(small * settings["max_sizes"][number]) / 2
            large = [(side, side)]
        others = [
            (small * math.sqrt(ratio) / 2, small / math.sqrt(ratio) / 2)
            for ratio in ratios
            if abs(ratio - 1.0) >= 1e-6
        ]
        in_order = settings["min_max_aspect_ratios_order"]
        sizes += plain + (large + others if in_order else others + large)
    return sizes


def _prior_shape(x: Shape, image: Shape, **settings: Any) -> list[Shape]:
    del image
    shape = (x[2], x[3], len(_prior_sizes(settings)), 4)
    return [shape, shape]


@op("prior_box", "Input Image", "Boxes Variances", lod="none", infer=_prior_shape)
def prior_box_op(
    x: Tensor,
    image: Tensor,
    *,
    min_sizes: Sequence[float],
    max_sizes: Sequence[float],
    aspect_ratios: Sequence[float],
    variances: Sequence[float],
    flip: bool,
    clip: bool,
    steps: Sequence[float],
    offset: float,
    min_max_aspect_ratios_order: bool,
) -> tuple[Tensor, Tensor]:
    """Return boxes around each feature map position, relative to the image: [H, W, priors, 4]."""
    settings = {
        "min_sizes": min_sizes,
        "max_sizes": max_sizes,
        "aspect_ratios": aspect_ratios,
        "flip": flip,
        "min_max_aspect_ratios_order": min_max_aspect_ratios_order,
    }
    halves = torch.tensor(_prior_sizes(settings), dtype=x.dtype)
    middle, whole = _grid(x, image, steps, offset)
    boxes = torch.cat([middle[:, :, None] - halves, middle[:, :, None] + halves], -1) / whole
    return _boxes_and_variances(boxes, variances, clip)


def _grid(x: Tensor, image: Tensor, steps: Sequence[float], offset: float) -> tuple[Tensor, Tensor]:
    """Return the center of each position in pixels [H, W, 2], and the image size [4]."""
    height, width = x.shape[2:]
    across = steps[0] or image.shape[3] / width
    down = steps[1] or image.shape[2] / height
    columns = (torch.arange(width, dtype=x.dtype) + offset) * across
    rows = (torch.arange(height, dtype=x.dtype) + offset) * down
    middle = torch.stack(torch.meshgrid(rows, columns, indexing="ij")[::-1], -1)
    return middle, torch.tensor([image.shape[3], image.shape[2]] * 2, dtype=x.dtype)


def _density_shape(x: Shape, image: Shape, **settings: Any) -> list[Shape]:
    del image
    count = sum(d * d for d in settings["densities"]) * len(settings["fixed_ratios"])
    shape: Shape = (x[2], x[3], count, 4)
    if settings["flatten_to_2d"]:
        shape = (x[2] * x[3] * count if min(x[2:]) > 0 else -1, 4)
    return [shape, shape]


@op("density_prior_box", "Input Image", "Boxes Variances", lod="none", infer=_density_shape)
def density_prior_box_op(
    x: Tensor,
    image: Tensor,
    *,
    densities: Sequence[int],
    fixed_sizes: Sequence[float],
    fixed_ratios: Sequence[float],
    variances: Sequence[float],
    clip: bool,
    steps: Sequence[float],
    offset: float,
    flatten_to_2d: bool,
) -> tuple[Tensor, Tensor]:
    """Return boxes like `prior_box`, but with several boxes of each size, spread over a grid
    cell.
    """
    middle, whole = _grid(x, image, steps, offset)
    across = steps[0] or image.shape[3] / x.shape[3]
    down = steps[1] or image.shape[2] / x.shape[2]
    step = int((across + down) * 0.5)
    boxes = []
    for size, density in zip(fixed_sizes, densities, strict=True):
        shift = int(step / density)
        for ratio in fixed_ratios:
            half = torch.tensor([size * math.sqrt(ratio), size / math.sqrt(ratio)]) / 2
            first = middle - step / 2.0 + shift / 2.0
            for row in range(density):
                for column in range(density):
                    at = first + torch.tensor([column * shift, row * shift], dtype=x.dtype)
                    boxes.append(torch.cat([at - half, at + half], -1) / whole)
    made = torch.stack(boxes, 2).clamp(0, 1) if clip else torch.stack(boxes, 2)
    made = made.to(x.dtype)
    if flatten_to_2d:
        made = made.reshape(-1, 4)
    return _boxes_and_variances(made, variances, clip)


def _anchor_shape(x: Shape, **settings: Any) -> list[Shape]:
    count = len(settings["anchor_sizes"]) * len(settings["aspect_ratios"])
    return [(x[2], x[3], count, 4)] * 2


@op("anchor_generator", "Input", "Anchors Variances", lod="none", infer=_anchor_shape)
def anchor_generator_op(
    x: Tensor,
    *,
    anchor_sizes: Sequence[float],
    aspect_ratios: Sequence[float],
    variances: Sequence[float],
    stride: Sequence[float],
    offset: float,
) -> tuple[Tensor, Tensor]:
    """Return boxes in pixels around each position in a feature map: [H, W, anchors, 4]."""
    height, width = x.shape[2:]
    columns = torch.arange(width, dtype=x.dtype) * stride[0] + offset * (stride[0] - 1)
    rows = torch.arange(height, dtype=x.dtype) * stride[1] + offset * (stride[1] - 1)
    middle = torch.stack(torch.meshgrid(rows, columns, indexing="ij")[::-1], -1)
    halves = []
    for ratio in aspect_ratios:
        base_width = round(math.sqrt(stride[0] * stride[1] / ratio))
        base_height = round(base_width * ratio)
        for size in anchor_sizes:
            halves.append(
                (
                    0.5 * (size / stride[0] * base_width - 1),
                    0.5 * (size / stride[1] * base_height - 1),
                )
            )
    half = torch.tensor(halves, dtype=x.dtype)
    boxes = torch.cat([middle[:, :, None] - half, middle[:, :, None] + half], -1)
    return _boxes_and_variances(boxes, variances, False)


def _pair_of(value: Any, name: str) -> list[float]:
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise ValueError(f"{name} must be a list of 2 numbers, got {value!r}")
    return [float(one) for one in value]


def _listed(value: Any) -> list[float]:
    return [float(one) for one in (value if isinstance(value, (list, tuple)) else [value])]


@layer
def prior_box(
    input: Variable,
    image: Variable,
    min_sizes: Sequence[float],
    max_sizes: Sequence[float] | None = None,
    aspect_ratios: Sequence[float] = (1.0,),
    variance: Sequence[float] = _VARIANCE,
    flip: bool = False,
    clip: bool = False,
    steps: Sequence[float] = (0.0, 0.0),
    offset: float = 0.5,
    name: str | None = None,
    min_max_aspect_ratios_order: bool = False,
) -> tuple[Variable, ...]:
    """Return boxes around each feature map position, and their variances: [H, W, priors, 4]."""
    helper = LayerHelper("prior_box", name)
    attrs = op_settings(
        "prior_box",
        locals(),
        min_sizes=_listed(min_sizes),
        max_sizes=_listed(max_sizes) if max_sizes else [],
        aspect_ratios=_listed(aspect_ratios),
        variances=list(variance),
        steps=_pair_of(steps, "steps"),
    )
    inputs = {"Input": input, "Image": helper.check_input(image, "image")}
    return tuple(helper.add_all("prior_box", inputs, attrs, stop_gradient=True))


@layer
def density_prior_box(
    input: Variable,
    image: Variable,
    densities: Sequence[int] | None = None,
    fixed_sizes: Sequence[float] | None = None,
    fixed_ratios: Sequence[float] | None = None,
    variance: Sequence[float] = _VARIANCE,
    clip: bool = False,
    steps: Sequence[float] = (0.0, 0.0),
    offset: float = 0.5,
    flatten_to_2d: bool = False,
    name: str | None = None,
) -> tuple[Variable, ...]:
    """Return boxes like `prior_box`, but with `density` x `density` boxes of each size per grid
    cell.
    """
    helper = LayerHelper("density_prior_box", name)
    if len(densities or ()) != len(fixed_sizes or ()):
        raise helper.refuse(
            "densities and fixed_sizes must have the same length, got "
            f"{densities!r} and {fixed_sizes!r}"
        )
    attrs = op_settings(
        "density_prior_box",
        locals(),
        densities=list(densities or ()),
        fixed_sizes=_listed(fixed_sizes or ()),
        fixed_ratios=_listed(fixed_ratios or ()),
        variances=list(variance),
        steps=_pair_of(steps, "steps"),
    )
    inputs = {"Input": input, "Image": helper.check_input(image, "image")}
    return tuple(helper.add_all("density_prior_box", inputs, attrs, stop_gradient=True))


@layer
def anchor_generator(
    input: Variable,
    anchor_sizes: Sequence[float] | None = None,
    aspect_ratios: Sequence[float] | None = None,
    variance: Sequence[float] = _VARIANCE,
    stride: Sequence[float] | None = None,
    offset: float = 0.5,
    name: str | None = None,
) -> tuple[Variable, ...]:
    """Return boxes in pixels around each position in a feature map: [H, W, anchors, 4]."""
    helper = LayerHelper("anchor_generator", name)
    attrs = {
        "anchor_sizes": _listed(anchor_sizes),
        "aspect_ratios": _listed(aspect_ratios),
        "variances": list(variance),
        "stride": _pair_of(stride, "stride"),
        "offset": offset,
    }
    inputs = {"Input": helper.check_input(input)}
    return tuple(helper.add_all("anchor_generator", inputs, attrs, stop_gradient=True))
