"""Losses for the one-stage detectors SSD and YOLOv3, and the head that predicts SSD's boxes.

In shapes, N is the number of images, P the number of priors, B the number of ground-truth boxes
per image, C the number of classes, K the number of anchors in use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.lowering.registry import Shape, op
from sparsefleet.fluid.operators.boxes import (
    bipartite_match,
    box_coder,
    iou_similarity,
    target_assign,
)
from sparsefleet.fluid.operators.convolutions import conv2d
from sparsefleet.fluid.operators.layer_helper import LayerHelper, layer, op_settings
from sparsefleet.fluid.operators.losses import softmax_with_cross_entropy
from sparsefleet.fluid.operators.priors import prior_box
from sparsefleet.fluid.operators.ranking import smooth_l1
from sparsefleet.fluid.operators.reductions import reduce_sum
from sparsefleet.fluid.operators.shaping import cast, concat, flatten, reshape, transpose
from sparsefleet.fluid.operators.suppression import lod_of_lengths

__all__ = ["multi_box_head", "ssd_loss", "yolov3_loss"]

Tensor = torch.Tensor


def _shared(x: Tensor, y: Tensor) -> Tensor:
    """Return the intersection over union of boxes, each given as center and size: [..., 4]."""
    low = torch.maximum(x[..., :2] - x[..., 2:] / 2, y[..., :2] - y[..., 2:] / 2)
    high = torch.minimum(x[..., :2] + x[..., 2:] / 2, y[..., :2] + y[..., 2:] / 2)
    both = (high - low).clamp(min=0).prod(-1)
    return both / (x[..., 2:].prod(-1) + y[..., 2:].prod(-1) - both)


def _yolo_shapes(x: Shape, boxes: Shape, *_: Any, **settings: Any) -> list[Shape]:
    return [(x[0],), (x[0], len(settings["anchor_mask"]), *x[2:]), (boxes[0], boxes[1])]


@op(
    "yolov3_loss",
    "X GTBox GTLabel GTScore?",
    "Loss ObjectnessMask GTMatchMask",
    lod="none",
    infer=_yolo_shapes,
)
def yolov3_loss_op(
    x: Tensor,
    boxes: Tensor,
    labels: Tensor,
    scores: Tensor | None,
    *,
    anchors: Sequence[int],
    anchor_mask: Sequence[int],
    class_num: int,
    ignore_thresh: float,
    downsample_ratio: int,
    use_label_smooth: bool = True,
    scale_x_y: float = 1.0,
) -> list[Tensor]:
    """Return the loss [N], a mask of the cells that hold objects, and each ground-truth box's
    anchor.

    x: [N, K (5 + C), H, W]; boxes: center and size [N, B, 4], as fractions of the image; a box of
    size 0 is padding.
    """
    images, _, height, width = x.shape
    values = x.reshape(images, len(anchor_mask), 5 + class_num, height, width)
    size = downsample_ratio * height
    all_anchors = torch.tensor(list(anchors), dtype=x.dtype).reshape(-1, 2)
    given = torch.ones(boxes.shape[:2], dtype=x.dtype) if scores is None else scores
    valid = (boxes[..., 2:] >= 1e-6).all(-1)
    settings = {"scale": scale_x_y, "limit": ignore_thresh}
    used_anchors = all_anchors[list(anchor_mask)] / size
    objects = _ignored(values.detach(), boxes, valid, used_anchors, settings)
    near = _shared(
        torch.cat([torch.zeros_like(all_anchors), all_anchors / size], 1),
        torch.cat([torch.zeros_like(boxes[..., :2]), boxes[..., 2:]], -1)[:, :, None],
    ).argmax(-1)  # [N, B]
    places = {anchor: place for place, anchor in reversed(list(enumerate(anchor_mask)))}
    match = torch.tensor([[places.get(int(one), -1) for one in row] for row in near])
    match = torch.where(valid, match, -1).reshape(valid.shape)
    image, box = (match >= 0).nonzero(as_tuple=True)
    used, true, score = match[image, box], boxes[image, box], given[image, box]
    column, row = (true[:, 0] * width).long(), (true[:, 1] * height).long()
    cells = values[image, used, :, row, column]  # [matched, 5 + C]
    grid = torch.stack([column, row], 1)
    middle = true[:, :2] * height - grid
    sides = torch.log(true[:, 2:] * size / all_anchors[near[image, box]])
    weight = ((2.0 - true[:, 2] * true[:, 3]) * score)[:, None]
    entropy = functional.binary_cross_entropy_with_logits
    location = entropy(cells[:, :2], middle, reduction="none") * weight
    location = location + (cells[:, 2:4] - sides).abs() * weight
    smooth = min(1.0 / class_num, 1.0 / 40) if use_label_smooth else 0.0
    wanted = torch.full((len(cells), class_num), smooth, dtype=x.dtype)
    wanted[torch.arange(len(cells)), labels[image, box].long()] = 1.0 - smooth
    classes = entropy(cells[:, 5:], wanted, reduction="none") * score[:, None]
    loss = torch.zeros(images, dtype=x.dtype).index_add(0, image, location.sum(1) + classes.sum(1))
    for one in range(len(image)):  # in order, so that later boxes overwrite earlier ones
        objects[image[one], used[one], row[one], column[one]] = score[one]
    found = values[:, :, 4]
    there = functional.softplus(-found) * objects.clamp(min=0)
    away = functional.softplus(found)
    per_cell = torch.where(objects > 1e-5, there, torch.where(objects > -0.5, away, 0.0))
    return [loss + per_cell.sum((1, 2, 3)), objects, match.to(torch.int32)]


def _ignored(
    values: Tensor, boxes: Tensor, valid: Tensor, sizes: Tensor, settings: dict[str, float]
) -> Tensor:
    """Return -1 for cells whose predicted box overlaps a ground-truth box, else 0: [N, K, H, W]."""
    height, width = values.shape[3:]
    bias = -0.5 * (settings["scale"] - 1.0)
    columns = torch.arange(width, dtype=values.dtype)
    rows = torch.arange(height, dtype=values.dtype)[:, None]
    left = (columns + values[:, :, 0].sigmoid() * settings["scale"] + bias) / height
    top = (rows + values[:, :, 1].sigmoid() * settings["scale"] + bias) / height
    sides = values[:, :, 2:4].exp() * sizes[None, :, :, None, None]
    predicted = torch.stack([left, top, sides[:, :, 0], sides[:, :, 1]], -1)
    best = torch.zeros_like(left)
    for number in range(boxes.shape[1]):
        shared = _shared(predicted, boxes[:, number, None, None, None])
        best = torch.where(valid[:, number, None, None, None], torch.maximum(best, shared), best)
    return torch.where(best > settings["limit"], -1.0, torch.zeros_like(best))


def _mined_shapes(loss: Shape, other: Any, match: Shape, *_: Any, **__: Any) -> list[Shape]:
    del loss, other
    return [(-1, 1), match]


@op(
    "mine_hard_examples",
    "ClsLoss LocLoss? MatchIndices MatchDist",
    "NegIndices UpdatedMatchIndices",
    lod="function",
    infer=_mined_shapes,
)
def mine_hard_examples_op(
    loss: Tensor,
    location: Tensor | None,
    match: Tensor,
    distance: Tensor,
    *,
    lods: list[Any],
    neg_pos_ratio: float = 1.0,
    neg_dist_threshold: float = 0.5,
    mining_type: str = "max_negative",
    sample_size: int | None = 0,
) -> tuple[list[Tensor], Any]:
    """Return the unmatched priors with the largest losses, image by image, and the new matches."""
    del lods
    loss = loss.reshape(match.shape).detach()
    updated, places = match.clone(), []
    for number in range(len(match)):
        own, cost = match[number], loss[number]
        if mining_type == "max_negative":
            eligible = ((own == -1) & (distance[number] < neg_dist_threshold)).nonzero().reshape(-1)
            count = int(int((own != -1).sum()) * neg_pos_ratio)
        else:
            eligible, count = torch.arange(len(own)), int(sample_size or 0)
            cost = cost if location is None else cost + location.reshape(match.shape)[number]
        order = cost[eligible].argsort(descending=True, stable=True)
        chosen = eligible[order[:count]].sort().values
        if mining_type != "max_negative":
            is_chosen = torch.zeros(len(own), dtype=torch.bool)
            is_chosen[chosen] = True
            updated[number][~is_chosen] = -1
            chosen = (is_chosen & (own <= -1)).nonzero().reshape(-1)
        places.append(chosen)
    negatives = torch.cat(places).to(torch.int32).reshape(-1, 1)
    return [negatives, updated], lod_of_lengths([len(one) for one in places])


# -- layers -----------------------------------------------------------------------------------


@layer
def yolov3_loss(
    x: Variable,
    gt_box: Variable,
    gt_label: Variable,
    anchors: Sequence[int],
    anchor_mask: Sequence[int],
    class_num: int,
    ignore_thresh: float,
    downsample_ratio: int,
    gt_score: Variable | None = None,
    use_label_smooth: bool = True,
    name: str | None = None,
    scale_x_y: float = 1.0,
) -> Variable:
    """Return the YOLOv3 loss of each image for one feature map."""
    helper = LayerHelper("yolov3_loss", name)
    inputs = {
        "X": helper.check_input(x, "x"),
        "GTBox": helper.check_input(gt_box, "gt_box"),
        "GTLabel": helper.check_input(gt_label, "gt_label"),
    }
    if gt_score is not None:
        inputs["GTScore"] = helper.check_input(gt_score, "gt_score")
    wanted: tuple[tuple[str, Any, tuple[type, ...]], ...] = (
        ("anchors", anchors, (list, tuple)),
        ("anchor_mask", anchor_mask, (list, tuple)),
        ("class_num", class_num, (int,)),
        ("ignore_thresh", ignore_thresh, (float,)),
        ("use_label_smooth", use_label_smooth, (bool,)),
    )
    for what, value, types in wanted:
        if not isinstance(value, types):
            names = " or ".join(kind.__name__ for kind in types)
            raise TypeError(f"{what} must be of type {names}, got {value!r}")
    attrs = op_settings(
        "yolov3_loss", locals(), anchors=list(anchors), anchor_mask=list(anchor_mask)
    )
    return helper.add_all("yolov3_loss", inputs, attrs, [x.dtype, x.dtype, "int32"])[0]


@layer
def ssd_loss(
    location: Variable,
    confidence: Variable,
    gt_box: Variable,
    gt_label: Variable,
    prior_box: Variable,
    prior_box_var: Variable | None = None,
    background_label: int = 0,
    overlap_threshold: float = 0.5,
    neg_pos_ratio: float = 3.0,
    neg_overlap: float = 0.5,
    loc_loss_weight: float = 1.0,
    conf_loss_weight: float = 1.0,
    match_type: str = "per_prediction",
    mining_type: str = "max_negative",
    normalize: bool = True,
    sample_size: int | None = None,
) -> Variable:
    """Return each image's SSD loss [N, 1], for boxes [N, P, 4] and classes [N, P, C].

    Priors are matched with ground-truth boxes; the unmatched priors with the largest losses are
    background.
    """
    helper = LayerHelper("ssd_loss")
    if mining_type != "max_negative":
        raise ValueError(f"mining_type must be 'max_negative', got {mining_type!r}")
    overlap = iou_similarity(x=gt_box, y=prior_box)
    matched, distance = bipartite_match(overlap, match_type, overlap_threshold)
    label = reshape(gt_label, [0] * (len(gt_label.shape) - 1) + [-1, 1])
    label.stop_gradient = True
    first_label, _ = target_assign(label, matched, mismatch_value=background_label)
    scores = flatten(confidence, axis=2)
    first_loss = softmax_with_cross_entropy(scores, _classes(first_label))
    inputs = {"ClsLoss": first_loss, "MatchIndices": matched, "MatchDist": distance}
    attrs = op_settings("mine_hard_examples", locals(), neg_dist_threshold=neg_overlap)
    negatives, matched = helper.add_all(
        "mine_hard_examples", inputs, attrs, ["int32"] * 2, stop_gradient=True
    )
    coded = box_coder(prior_box, prior_box_var, gt_box, "encode_center_size")
    boxes, box_weight = target_assign(coded, matched, mismatch_value=background_label)
    target, weight = target_assign(label, matched, negatives, background_label)
    class_loss = softmax_with_cross_entropy(scores, _classes(target)) * _rows(weight)
    box_loss = smooth_l1(flatten(location, axis=2), _rows(boxes)) * _rows(box_weight)
    per_prior = class_loss * conf_loss_weight + box_loss * loc_loss_weight
    loss = reduce_sum(reshape(per_prior, [-1, confidence.shape[1]]), dim=1, keep_dim=True)
    return loss / reduce_sum(_rows(box_weight)) if normalize else loss


def _rows(x: Variable) -> Variable:
    """Return the variable as a matrix with one row per prior, without gradient."""
    made = flatten(x, axis=2)
    made.stop_gradient = True
    return made


def _classes(label: Variable) -> Variable:
    made = cast(_rows(label), "int64")
    made.stop_gradient = True
    return made


@layer
def multi_box_head(
    inputs: Sequence[Variable],
    image: Variable,
    base_size: int,
    num_classes: int,
    aspect_ratios: Sequence[Any],
    min_ratio: int | None = None,
    max_ratio: int | None = None,
    min_sizes: Sequence[Any] | None = None,
    max_sizes: Sequence[Any] | None = None,
    steps: Sequence[float] | None = None,
    step_w: Sequence[float] | None = None,
    step_h: Sequence[float] | None = None,
    offset: float = 0.5,
    variance: Sequence[float] = (0.1, 0.1, 0.2, 0.2),
    flip: bool = True,
    clip: bool = False,
    kernel_size: int = 1,
    pad: int = 0,
    stride: int = 1,
    name: str | None = None,
    min_max_aspect_ratios_order: bool = False,
) -> tuple[Variable, ...]:
    """Predict boxes on several feature maps; return locations, confidences, priors, variances."""
    del name
    if not isinstance(inputs, (list, tuple)):
        raise ValueError(f"inputs must be a list or tuple of Variables, got {inputs!r}")
    for what, given in (
        ("aspect_ratios", aspect_ratios),
        ("steps", steps),
        ("step_w", step_w),
        ("step_h", step_h),
    ):
        is_list = isinstance(given, (list, tuple))
        if given is not None and not (is_list and len(given) == len(inputs)):
            raise ValueError(f"{what} must be a list with one entry per input, got {given!r}")
    if min_sizes is None or max_sizes is None:
        min_sizes, max_sizes = _sizes_between(len(inputs), base_size, min_ratio, max_ratio)
    wide, high = (steps, steps) if steps else (step_w, step_h)
    parts: list[tuple[Variable, ...]] = []
    for number, x in enumerate(inputs):
        boxes, variances = prior_box(
            x,
            image,
            _listed(min_sizes[number]),
            _listed(max_sizes[number]),
            _listed(aspect_ratios[number]) if aspect_ratios else [],
            list(variance),
            flip,
            clip,
            [wide[number] if wide else 0.0, high[number] if high else 0.0],
            offset,
            None,
            min_max_aspect_ratios_order,
        )
        count = boxes.shape[2]
        predicted = [
            flatten(
                transpose(
                    conv2d(x, count * width, kernel_size, stride=stride, padding=pad), [0, 2, 3, 1]
                ),
                axis=1,
            )
            for width in (4, num_classes)
        ]
        parts.append((*predicted, boxes, variances))
    if len(parts) == 1:
        return parts[0]
    priors = [concat([flatten(part[place], axis=3) for part in parts]) for place in (2, 3)]
    for prior in priors:
        prior.stop_gradient = True
    location, confidence = (concat([part[place] for part in parts], axis=1) for place in (0, 1))
    return (
        reshape(location, [0, -1, 4]),
        reshape(confidence, [0, -1, num_classes]),
        *priors,
    )


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _sizes_between(
    count: int, base_size: int, min_ratio: int | None, max_ratio: int | None
) -> tuple[list[float], list[float]]:
    """Return the smallest and largest box sizes for each feature map, given ratios in percent."""
    if count <= 2 or min_ratio is None or max_ratio is None:
        raise ValueError(
            "min_sizes and max_sizes are missing; pass them, or min_ratio and max_ratio for more "
            "than 2 inputs"
        )
    step = (max_ratio - min_ratio) // (count - 2)
    ratios = range(min_ratio, max_ratio + 1, step)
    low = [base_size * 0.1, *(base_size * ratio / 100 for ratio in ratios)]
    high = [base_size * 0.2, *(base_size * (ratio + step) / 100 for ratio in ratios)]
    return low, high
