"""Boxes in images: clipping, overlaps, matching and encoding.

A box is [left, top, right, bottom]. In shapes, N is the number of boxes, P the number of priors.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.lowering.registry import Shape, op
from sparsefleet.fluid.operators.layer_helper import LayerHelper, layer, op_settings

__all__ = [
    "bipartite_match",
    "box_clip",
    "box_coder",
    "box_decoder_and_assign",
    "iou_similarity",
    "polygon_box_transform",
    "target_assign",
]

Tensor = torch.Tensor
Lods = list[Any]


def parts_of(lod: Any, rows: int) -> list[tuple[int, int]]:
    """Return the start and end of each last-level sequence or, without a LoD, of all rows."""
    if not lod:
        return [(0, rows)]
    offsets = [int(x) for x in lod[-1]]
    return list(pairwise(offsets))


def overlaps(x: Tensor, y: Tensor, extra: float = 0.0) -> Tensor:
    """Return the intersection over union of all pairs of x [N, 4] and y [M, 4].

    extra: added to widths and heights; 1 if boxes are in pixels, otherwise 0.
    """
    low = torch.maximum(x[:, None, :2], y[None, :, :2])
    high = torch.minimum(x[:, None, 2:4], y[None, :, 2:4])
    shared = (high - low + extra).clamp(min=0).prod(-1)
    total = area(x, extra)[:, None] + area(y, extra)[None] - shared
    return torch.where(shared > 0, shared / total, torch.zeros_like(shared))


def area(x: Tensor, extra: float = 0.0) -> Tensor:
    """Return width times height of boxes [..., 4]."""
    return (x[..., 2] - x[..., 0] + extra) * (x[..., 3] - x[..., 1] + extra)


@op("iou_similarity", "X Y", lod="share", infer=lambda x, y, **_: [(x[0], y[0])])
def iou_similarity_op(x: Tensor, y: Tensor, *, box_normalized: bool = True) -> Tensor:
    return overlaps(x, y, 0.0 if box_normalized else 1.0)


def _centers(boxes: Tensor, extra: float) -> tuple[Tensor, Tensor]:
    """Return the center and size of boxes [..., 4], each [..., 2]."""
    sizes = boxes[..., 2:] - boxes[..., :2] + extra
    return boxes[..., :2] + sizes * 0.5, sizes


def encode(boxes: Tensor, priors: Tensor, variance: Tensor | None, extra: float) -> Tensor:
    """Encode boxes [..., 4] as differences from priors of the same shape."""
    middle, sizes = _centers(boxes, extra)
    prior_middle, prior_sizes = _centers(priors, extra)
    made = torch.cat(
        [(middle - prior_middle) / prior_sizes, torch.log((sizes / prior_sizes).abs())], -1
    )
    return made if variance is None else made / variance


def decode(deltas: Tensor, priors: Tensor, variance: Tensor | None, extra: float) -> Tensor:
    """Decode boxes returned by `encode`."""
    scaled = deltas if variance is None else deltas * variance
    prior_middle, prior_sizes = _centers(priors, extra)
    middle = scaled[..., :2] * prior_sizes + prior_middle
    sizes = torch.exp(scaled[..., 2:]) * prior_sizes
    return torch.cat([middle - sizes * 0.5, middle + sizes * 0.5 - extra], -1)


def _coded_shape(priors: Shape, given: Any, target: Shape, /, **settings: Any) -> list[Shape]:
    del given
    if settings.get("code_type", "encode_center_size") == "encode_center_size":
        return [(target[0], priors[0], 4)]
    return [target]


@op("box_coder", "PriorBox PriorBoxVar? TargetBox", "OutputBox", infer=_coded_shape)
def box_coder_op(
    priors: Tensor,
    variances: Tensor | None,
    target: Tensor,
    *,
    code_type: str = "encode_center_size",
    box_normalized: bool = True,
    axis: int = 0,
    variance: Sequence[float] = (),
) -> Tensor:
    """Encode [N, 4] -> [N, P, 4], or decode [N, P, 4] with the priors along `axis`."""
    extra = 0.0 if box_normalized else 1.0
    fixed = torch.tensor(list(variance), dtype=priors.dtype) if variance else None
    if code_type == "encode_center_size":
        known = fixed if variances is None else variances[None]
        return encode(target[:, None], priors[None].expand(len(target), -1, -1), known, extra)
    place = 0 if axis == 0 else 1
    wide = priors.unsqueeze(place)
    known = fixed if variances is None else variances.unsqueeze(place)
    return decode(target, wide, known, extra)


@op("polygon_box_transform", "Input", "Output", lod="none")
def polygon_box_transform_op(x: Tensor) -> Tensor:
    """Convert corner offsets [N, 2 n, H, W] to positions: 4 times the pixel's coordinate minus the
    offset.
    """
    rows = torch.arange(x.shape[2], device=x.device)[:, None] * 4
    columns = torch.arange(x.shape[3], device=x.device)[None] * 4
    made = -x
    made[:, 0::2] += columns.to(x.dtype)
    made[:, 1::2] += rows.to(x.dtype)
    return made


@op("box_clip", "Input ImInfo", "Output", lod="function", infer=lambda x, _, **__: [x])
def box_clip_op(boxes: Tensor, im_info: Tensor, *, lods: Lods) -> tuple[Tensor, Any]:
    """Clip boxes to their image; im_info holds the height, width and scale of each image."""
    made = []
    for number, (begin, end) in enumerate(parts_of(lods[0], len(boxes))):
        made.append(clip_to_image(boxes[begin:end], im_info[number]))
    return torch.cat(made), lods[0]


def clip_to_image(boxes: Tensor, info: Tensor) -> Tensor:
    """Clip boxes [..., 4 n] to an image; `info` holds its height, width and scale."""
    height, width = (info[:2] / info[2]).round()
    limits = torch.stack([width - 1, height - 1] * (boxes.shape[-1] // 2))
    return torch.minimum(boxes.clamp(min=0), limits)


@op(
    "bipartite_match",
    "DistMat",
    "ColToRowMatchIndices ColToRowMatchDist",
    lod="function",
    infer=lambda x, **_: [(-1, x[1])] * 2,
)
def bipartite_match_op(
    distances: Tensor, *, lods: Lods, match_type: str = "bipartite", dist_threshold: float = 0.5
) -> tuple[list[Tensor], Any]:
    """Match each column to a row; return the row indices (-1 if unmatched) and their distances."""
    found_rows, found_distances = [], []
    for begin, end in parts_of(lods[0], len(distances)):
        near = distances[begin:end].detach()
        rows = torch.full((near.shape[1],), -1, dtype=torch.int32)
        best = torch.zeros(near.shape[1], dtype=near.dtype)
        left = near.clone()
        for _ in range(min(near.shape)):
            place = int(left.argmax())
            row, column = divmod(place, near.shape[1])
            if float(left[row, column]) <= 1e-6:
                break
            rows[column], best[column] = row, near[row, column]
            left[row] = -1
            left[:, column] = -1
        if match_type == "per_prediction" and len(near):
            top, which = near.max(0)
            more = (rows < 0) & (top >= dist_threshold) & (top > 1e-6)
            rows[more], best[more] = which[more].to(torch.int32), top[more]
        found_rows.append(rows)
        found_distances.append(best)
    return [torch.stack(found_rows), torch.stack(found_distances)], ()


def _assigned_shape(x: Shape, match: Shape, negative: Any, **_: Any) -> list[Shape]:
    del negative
    return [(match[0], match[1], x[-1]), (match[0], match[1], 1)]


@op(
    "target_assign",
    "X MatchIndices NegIndices?",
    "Out WeightOut",
    lod="function",
    infer=_assigned_shape,
)
def target_assign_op(
    x: Tensor, match: Tensor, negative: Tensor | None, *, lods: Lods, mismatch_value: int = 0
) -> tuple[list[Tensor], Any]:
    """Return the matched row of x with weight 1, or mismatch_value with weight 0."""
    width = x.shape[-1]
    out = torch.full((*match.shape, width), mismatch_value, dtype=x.dtype)
    weight = torch.zeros((*match.shape, 1))
    for number, (begin, _) in enumerate(parts_of(lods[0], len(x))):
        places = (match[number] >= 0).nonzero().reshape(-1)
        rows = match[number][places].long() + begin
        taken = x[rows, places % x.shape[1]] if x.dim() == 3 else x[rows]
        out[number, places] = taken
        weight[number, places] = 1.0
    if negative is not None:
        for number, (begin, end) in enumerate(parts_of(lods[2], len(negative))):
            places = negative[begin:end].reshape(-1).long()
            out[number, places] = mismatch_value
            weight[number, places] = 1.0
    return [out, weight], ()


@op(
    "box_decoder_and_assign",
    "PriorBox PriorBoxVar? TargetBox BoxScore",
    "DecodeBox OutputAssignBox",
    lod="none",
    infer=lambda *shapes, **_: [shapes[2], (shapes[2][0], 4)],
)
def box_decoder_and_assign_op(
    priors: Tensor,
    variances: Tensor | None,
    target: Tensor,
    scores: Tensor,
    *,
    box_clip: float,
) -> tuple[Tensor, Tensor]:
    """Return boxes of all C classes, [N, 4 C], and of the best class except the first, [N, 4]."""
    deltas = target.reshape(len(target), -1, 4)
    scaled = deltas if variances is None else deltas * variances.reshape(1, 1, 4)
    scaled = torch.cat([scaled[..., :2], scaled[..., 2:].clamp(max=box_clip)], -1)
    boxes = decode(scaled, priors[:, None], None, 1.0)
    best = scores[:, 1:].argmax(1) + 1
    return boxes.reshape(len(target), -1), boxes[torch.arange(len(target)), best]


# -- layers -----------------------------------------------------------------------------------


@layer
def iou_similarity(
    x: Variable, y: Variable, box_normalized: bool = True, name: str | None = None
) -> Variable:
    """Return the intersection over union of all pairs of boxes from x and y: [N, M]."""
    helper = LayerHelper("iou_similarity", name)
    inputs = {"X": helper.check_input(x, "x"), "Y": helper.check_input(y, "y")}
    return helper.add("iou_similarity", inputs, {"box_normalized": box_normalized}, dtype=x.dtype)


@layer
def box_coder(
    prior_box: Variable,
    prior_box_var: Variable | Sequence[float] | None,
    target_box: Variable,
    code_type: str = "encode_center_size",
    box_normalized: bool = True,
    name: str | None = None,
    axis: int = 0,
) -> Variable:
    """Encode boxes as differences from priors or, with "decode_center_size", decode them."""
    helper = LayerHelper("box_coder", name)
    inputs: dict[str, Any] = {"PriorBox": prior_box, "TargetBox": helper.check_input(target_box)}
    attrs = op_settings("box_coder", locals())
    if isinstance(prior_box_var, Variable):
        inputs["PriorBoxVar"] = prior_box_var
    elif isinstance(prior_box_var, (list, tuple)):
        attrs["variance"] = list(prior_box_var)
    elif prior_box_var is not None:
        raise TypeError(f"prior_box_var must be a Variable or a list, got {prior_box_var!r}")
    return helper.add("box_coder", inputs, attrs, slot="OutputBox", dtype=prior_box.dtype)


@layer
def polygon_box_transform(input: Variable, name: str | None = None) -> Variable:
    """Convert corner offsets to positions in the image."""
    helper = LayerHelper("polygon_box_transform", name)
    return helper.add("polygon_box_transform", {"Input": input}, slot="Output")


@layer
def box_clip(input: Variable, im_info: Variable, name: str | None = None) -> Variable:
    """Clip boxes to their image."""
    helper = LayerHelper("box_clip", name)
    out = helper.add("box_clip", {"Input": input, "ImInfo": im_info}, slot="Output")
    out.dtype, out.lod_level = input.dtype, input.lod_level
    return out


@layer
def bipartite_match(
    dist_matrix: Variable,
    match_type: str | None = None,
    dist_threshold: float | None = None,
    name: str | None = None,
) -> tuple[Variable, ...]:
    """Match each column with the nearest row, using each row once.

    Returns row indices and distances.
    """
    helper = LayerHelper("bipartite_match", name)
    attrs = {
        "match_type": match_type or "bipartite",
        "dist_threshold": 0.5 if dist_threshold is None else dist_threshold,
    }
    inputs, kinds = {"DistMat": dist_matrix}, ["int32", dist_matrix.dtype]
    return tuple(helper.add_all("bipartite_match", inputs, attrs, kinds, stop_gradient=True))


@layer
def target_assign(
    input: Variable,
    matched_indices: Variable,
    negative_indices: Variable | None = None,
    mismatch_value: int | None = None,
    name: str | None = None,
) -> tuple[Variable, ...]:
    """Return the input row matched to each position, and its weight: 1, or 0 if unmatched."""
    helper = LayerHelper("target_assign", name)
    inputs = {"X": input, "MatchIndices": matched_indices, "NegIndices": negative_indices}
    attrs = {"mismatch_value": mismatch_value or 0}
    kinds = [input.dtype, "float32"]
    return tuple(helper.add_all("target_assign", inputs, attrs, kinds, stop_gradient=True))


@layer
def box_decoder_and_assign(
    prior_box: Variable,
    prior_box_var: Variable,
    target_box: Variable,
    box_score: Variable,
    box_clip: float,
    name: str | None = None,
) -> tuple[Variable, ...]:
    """Return each box decoded for every class, and for its most likely class alone."""
    helper = LayerHelper("box_decoder_and_assign", name)
    inputs = {
        "PriorBox": prior_box,
        "PriorBoxVar": prior_box_var,
        "TargetBox": target_box,
        "BoxScore": box_score,
    }
    attrs = {"box_clip": float(box_clip)}
    return tuple(helper.add_all("box_decoder_and_assign", inputs, attrs))
