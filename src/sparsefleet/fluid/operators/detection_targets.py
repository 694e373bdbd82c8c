"""Training targets for detectors: assigns anchors and regions to ground-truth boxes.

A box is [left, top, right, bottom] in pixels. In shapes, A is the number of anchors, G the
number of ground-truth boxes, R the number of regions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.lowering.registry import op
from sparsefleet.fluid.operators.boxes import (
    encode,
    overlaps,
    parts_of,
)
from sparsefleet.fluid.operators.indexing import gather
from sparsefleet.fluid.operators.layer_helper import LayerHelper, layer, op_settings
from sparsefleet.fluid.operators.shaping import reshape
from sparsefleet.fluid.operators.suppression import lod_of_lengths

__all__ = ["generate_proposal_labels", "retinanet_target_assign", "rpn_target_assign"]

Tensor = torch.Tensor
Lods = list[Any]

_NEAR = 1e-5  # overlaps that differ by less count as equal, as in Fluid


def _sampled(places: Tensor, count: int, use_random: bool) -> Tensor:
    """Return `count` of the positions, either the first or chosen by reservoir sampling."""
    if len(places) <= count:
        return places
    kept = places.clone()
    if use_random:
        for place in range(count, len(places)):
            other = int(torch.rand(()) * place)
            if other < count:
                kept[other], kept[place] = kept[place].clone(), kept[other].clone()
    return kept[:count]


def _split_anchors(
    shared: Tensor, positive: float, negative: float, count: int, fraction: float, use_random: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the positions of foreground, background and regressed anchors, and the weights of the
    regressed anchors.

    shared: overlaps [A, G]. count: number of anchors to sample; all if not positive. An anchor
    sampled as both foreground and background counts as background, and a regressed anchor of weight
    0 replaces it.
    """
    best = shared.amax(1)
    is_nearest = ((shared - shared.amax(0)).abs() < _NEAR).any(1)
    front = (is_nearest | (best >= positive)).nonzero().reshape(-1)
    back = (best < negative).nonzero().reshape(-1)
    if count > 0 and fraction > 0:
        front = _sampled(front, int(fraction * count), use_random)
        back = _sampled(back, count - len(front), use_random)
    is_front = torch.zeros(len(shared), dtype=torch.bool)
    is_front[front] = True
    both = int(is_front[back].sum())
    is_front[back] = False
    is_back = torch.zeros(len(shared), dtype=torch.bool)
    is_back[back] = True
    kept = is_front.nonzero().reshape(-1)
    regressed = torch.cat([front[:1].repeat(both), kept])
    weights = torch.ones((len(regressed), 4), dtype=shared.dtype)
    weights[:both] = 0.0
    return kept, is_back.nonzero().reshape(-1), regressed, weights


def _anchor_targets(
    anchors: Tensor,
    boxes: Tensor,
    crowd: Tensor,
    labels: Tensor | None,
    im_info: Tensor,
    lods: tuple[Any, Any, Any],
    settings: dict[str, Any],
) -> tuple[list[Tensor], list[Any]]:
    """Return all targets (regressed and scored anchors, labels, deltas, weights, counts) and
    the LoD of each.

    lods: the LoDs of boxes, crowd and labels. settings: margin, and `_split_anchors`' arguments.
    """
    margin = settings.pop("margin")
    found: list[list[Tensor]] = []
    parts = zip(
        parts_of(lods[0], len(boxes)),
        parts_of(lods[1], len(crowd)),
        parts_of(lods[2], len(boxes)),
        strict=True,
    )
    for number, (own_boxes, own_crowd, own_labels) in enumerate(parts):
        height, width, scale = im_info[number].tolist()
        inside = torch.arange(len(anchors))
        if margin >= 0:
            low = (anchors[:, :2] >= -margin).all(1)
            limit = anchors.new_tensor([width + margin, height + margin])
            inside = (low & (anchors[:, 2:] < limit).all(1)).nonzero().reshape(-1)
        is_single = crowd[slice(*own_crowd)].reshape(-1) == 0
        true = boxes[slice(*own_boxes)][is_single] * scale
        shared = overlaps(anchors[inside], true, 1.0)
        front, back, regressed, weights = _split_anchors(shared, **settings)
        nearest = shared.argmax(1)
        label = torch.ones(len(front), dtype=torch.int32)
        if labels is not None:
            own = labels[slice(*own_labels)].reshape(-1)[is_single]
            label = own[nearest[front]].to(torch.int32)
        deltas = encode(true[nearest[regressed]], anchors[inside[regressed]], None, 1.0)
        offset = number * len(anchors)
        found.append(
            [
                (inside[regressed] + offset).to(torch.int32),
                (inside[torch.cat([front, back])] + offset).to(torch.int32),
                torch.cat([label, label.new_zeros(len(back))]).reshape(-1, 1),
                deltas,
                weights.to(anchors.dtype),
                torch.tensor([[len(regressed) + 1]], dtype=torch.int32),
            ]
        )
    columns = list(zip(*found, strict=True))
    by_image = [lod_of_lengths([len(part) for part in column]) for column in columns]
    return [torch.cat(column) for column in columns], by_image


_ANCHOR_SLOTS = "LocationIndex ScoreIndex TargetLabel TargetBBox BBoxInsideWeight"
_ANCHOR_SHAPES = [(-1,), (-1,), (-1, 1), (-1, 4), (-1, 4)]


@op(
    "rpn_target_assign",
    "Anchor GtBoxes IsCrowd ImInfo",
    _ANCHOR_SLOTS,
    lod="function",
    infer=lambda *_, **__: list(_ANCHOR_SHAPES),
)
def rpn_target_assign_op(
    anchors: Tensor,
    boxes: Tensor,
    crowd: Tensor,
    im_info: Tensor,
    *,
    lods: Lods,
    rpn_batch_size_per_im: int = 256,
    rpn_straddle_thresh: float = 0.0,
    rpn_fg_fraction: float = 0.5,
    rpn_positive_overlap: float = 0.7,
    rpn_negative_overlap: float = 0.3,
    use_random: bool = True,
) -> tuple[list[Tensor], Any]:
    """Sample anchors for a region proposal network: objects (1) and background (0)."""
    settings = {
        "margin": rpn_straddle_thresh,
        "positive": rpn_positive_overlap,
        "negative": rpn_negative_overlap,
        "count": rpn_batch_size_per_im,
        "fraction": rpn_fg_fraction,
        "use_random": use_random,
    }
    known = (lods[1], lods[2], lods[1])
    made, by_image = _anchor_targets(anchors, boxes, crowd, None, im_info, known, settings)
    return made[:-1], by_image[:-1]


@op(
    "retinanet_target_assign",
    "Anchor GtBoxes GtLabels IsCrowd ImInfo",
    f"{_ANCHOR_SLOTS} ForegroundNumber",
    lod="function",
    infer=lambda *_, **__: [*_ANCHOR_SHAPES, (-1, 1)],
)
def retinanet_target_assign_op(
    anchors: Tensor,
    boxes: Tensor,
    labels: Tensor,
    crowd: Tensor,
    im_info: Tensor,
    *,
    lods: Lods,
    positive_overlap: float = 0.5,
    negative_overlap: float = 0.4,
) -> tuple[list[Tensor], Any]:
    """Label all anchors that are clearly objects (with their class) or clearly background."""
    settings = {
        "margin": -1.0,
        "positive": positive_overlap,
        "negative": negative_overlap,
        "count": 0,
        "fraction": 0.0,
        "use_random": False,
    }
    known = (lods[1], lods[3], lods[2])
    return _anchor_targets(anchors, boxes, crowd, labels, im_info, known, settings)


def _region_shapes(*_: Any, class_nums: int, **__: Any) -> list[tuple[int, ...]]:
    return [(-1, 4), (-1, 1), *[(-1, 4 * class_nums)] * 3]


@op(
    "generate_proposal_labels",
    "RpnRois GtClasses IsCrowd GtBoxes ImInfo",
    "Rois LabelsInt32 BboxTargets BboxInsideWeights BboxOutsideWeights",
    lod="function",
    infer=_region_shapes,
)
def generate_proposal_labels_op(
    rois: Tensor,
    classes: Tensor,
    crowd: Tensor,
    boxes: Tensor,
    im_info: Tensor,
    *,
    lods: Lods,
    batch_size_per_im: int,
    fg_fraction: float,
    fg_thresh: float,
    bg_thresh_hi: float,
    bg_thresh_lo: float,
    bbox_reg_weights: Sequence[float],
    class_nums: int,
    use_random: bool = True,
    is_cls_agnostic: bool = False,
    is_cascade_rcnn: bool = False,
) -> tuple[list[Tensor], Any]:
    """Sample regions for the second stage of a detector, with their labels and box targets."""
    weights = torch.tensor(list(bbox_reg_weights), dtype=rois.dtype)
    made: list[list[Tensor]] = []
    lengths = []
    parts = [parts_of(lods[n], len(x)) for n, x in enumerate((rois, classes, crowd, boxes))]
    for number, own in enumerate(zip(*parts, strict=True)):
        if own[0][0] == own[0][1]:
            lengths.append(0)
            continue
        scale = im_info[number, 2]
        regions, true = rois[slice(*own[0])] / scale, boxes[slice(*own[3])]
        if is_cascade_rcnn:  # the first regions are ground-truth boxes, not scaled yet
            regions = torch.cat([rois[slice(*own[0])][: len(true)], regions[len(true) :]])
        else:
            regions = torch.cat([true, regions])
        shared = overlaps(regions, true, 1.0)
        best = shared.amax(1)
        best[: len(true)][crowd[slice(*own[2])].reshape(-1) != 0] = -1.0
        is_valid = torch.ones(len(regions), dtype=torch.bool)
        if is_cascade_rcnn:
            is_valid = (regions[:, 2:] - regions[:, :2] + 1 > 0).all(1)
        front = (is_valid & (best >= fg_thresh)).nonzero().reshape(-1)
        is_back = is_valid & (best < fg_thresh) & (best >= bg_thresh_lo) & (best < bg_thresh_hi)
        back = is_back.nonzero().reshape(-1)
        if not is_cascade_rcnn:
            front = _sampled(front, math.floor(batch_size_per_im * fg_fraction), use_random)
            back = _sampled(back, batch_size_per_im - len(front), use_random)
        match = ((shared[front] - best[front, None]).abs() < _NEAR).int().argmax(1)
        picked = regions[torch.cat([front, back])]
        label = torch.zeros(len(picked), dtype=torch.int32)
        label[: len(front)] = classes[slice(*own[1])].reshape(-1)[match].to(torch.int32)
        deltas = encode(true[match], regions[front], None, 1.0) / weights
        targets = rois.new_zeros((len(picked), class_nums, 4))
        inside = torch.zeros_like(targets)
        rows = (label[: len(front)] > 0).nonzero().reshape(-1)
        column = torch.ones_like(rows) if is_cls_agnostic else label[rows].long()
        targets[rows, column], inside[rows, column] = deltas[rows], 1.0
        flat = inside.reshape(len(picked), -1)
        made.append(
            [picked * scale, label.reshape(-1, 1), targets.reshape(flat.shape), flat, flat.clone()]
        )
        lengths.append(len(picked))
    return [torch.cat(column) for column in zip(*made, strict=True)], lod_of_lengths(lengths)


# -- layers -----------------------------------------------------------------------------------


def _assigned(
    helper: LayerHelper,
    type: str,
    inputs: dict[str, Any],
    attrs: dict[str, Any],
    predictions: tuple[Variable, Variable],
    width: int,
) -> tuple[Variable, ...]:
    """Add an operator that assigns targets.

    Returns the predictions that it selects, then the targets.
    """
    dtype = inputs["Anchor"].dtype
    kinds = ["int32", "int32", "int32", dtype, dtype]
    if type == "retinanet_target_assign":
        kinds.append("int32")
    made = helper.add_all(type, inputs, attrs, kinds, stop_gradient=True)
    scores = gather(reshape(predictions[1], [-1, width]), made[1])
    boxes = gather(reshape(predictions[0], [-1, 4]), made[0])
    return (scores, boxes, *made[2:])


@layer
def rpn_target_assign(
    bbox_pred: Variable,
    cls_logits: Variable,
    anchor_box: Variable,
    anchor_var: Variable,
    gt_boxes: Variable,
    is_crowd: Variable,
    im_info: Variable,
    rpn_batch_size_per_im: int = 256,
    rpn_straddle_thresh: float = 0.0,
    rpn_fg_fraction: float = 0.5,
    rpn_positive_overlap: float = 0.7,
    rpn_negative_overlap: float = 0.3,
    use_random: bool = True,
) -> tuple[Variable, ...]:
    """Sample anchors for a region proposal network.

    Returns the sampled anchors' predicted scores and boxes, then their labels, box targets and box
    weights.
    """
    del anchor_var
    helper = LayerHelper("rpn_target_assign")
    inputs = {"Anchor": anchor_box, "GtBoxes": gt_boxes, "IsCrowd": is_crowd, "ImInfo": im_info}
    attrs = op_settings("rpn_target_assign", locals())
    return _assigned(helper, "rpn_target_assign", inputs, attrs, (bbox_pred, cls_logits), 1)


@layer
def retinanet_target_assign(
    bbox_pred: Variable,
    cls_logits: Variable,
    anchor_box: Variable,
    anchor_var: Variable,
    gt_boxes: Variable,
    gt_labels: Variable,
    is_crowd: Variable,
    im_info: Variable,
    num_classes: int = 1,
    positive_overlap: float = 0.5,
    negative_overlap: float = 0.4,
) -> tuple[Variable, ...]:
    """Label all anchors for RetinaNet.

    Returns the same as `rpn_target_assign`, followed by each image's number of foreground anchors
    plus 1.
    """
    del anchor_var
    helper = LayerHelper("retinanet_target_assign")
    inputs = {
        "Anchor": anchor_box,
        "GtBoxes": gt_boxes,
        "GtLabels": gt_labels,
        "IsCrowd": is_crowd,
        "ImInfo": im_info,
    }
    attrs = {"positive_overlap": positive_overlap, "negative_overlap": negative_overlap}
    predictions = (bbox_pred, cls_logits)
    return _assigned(helper, "retinanet_target_assign", inputs, attrs, predictions, num_classes)


@layer
def generate_proposal_labels(
    rpn_rois: Variable,
    gt_classes: Variable,
    is_crowd: Variable,
    gt_boxes: Variable,
    im_info: Variable,
    batch_size_per_im: int = 256,
    fg_fraction: float = 0.25,
    fg_thresh: float = 0.25,
    bg_thresh_hi: float = 0.5,
    bg_thresh_lo: float = 0.0,
    bbox_reg_weights: Sequence[float] = (0.1, 0.1, 0.2, 0.2),
    class_nums: int | None = None,
    use_random: bool = True,
    is_cls_agnostic: bool = False,
    is_cascade_rcnn: bool = False,
) -> tuple[Variable, ...]:
    """Sample regions; return the regions, labels, box targets, and inside and outside weights."""
    helper = LayerHelper("generate_proposal_labels")
    if class_nums is None:
        raise ValueError("class_nums is None; pass the number of classes, including the background")
    inputs = {
        "RpnRois": rpn_rois,
        "GtClasses": gt_classes,
        "IsCrowd": is_crowd,
        "GtBoxes": gt_boxes,
        "ImInfo": im_info,
    }
    attrs = op_settings(
        "generate_proposal_labels", locals(), bbox_reg_weights=list(bbox_reg_weights)
    )
    kinds = [rpn_rois.dtype, gt_classes.dtype, *[rpn_rois.dtype] * 3]
    made = helper.add_all("generate_proposal_labels", inputs, attrs, kinds, stop_gradient=True)
    for one in made:
        one.lod_level = 1
    return tuple(made)
