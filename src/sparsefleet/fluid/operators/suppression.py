"""Non-maximum suppression, which drops boxes that overlap better ones, and related detection
layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.lowering.registry import Shape, op
from sparsefleet.fluid.operators.activations import softmax
from sparsefleet.fluid.operators.boxes import (
    area,
    box_coder,
    clip_to_image,
    decode,
    overlaps,
    parts_of,
)
from sparsefleet.fluid.operators.layer_helper import LayerHelper, layer, op_settings
from sparsefleet.fluid.operators.shaping import transpose

__all__ = [
    "collect_fpn_proposals",
    "detection_output",
    "distribute_fpn_proposals",
    "generate_proposals",
    "matrix_nms",
    "multiclass_nms",
    "yolo_box",
]

Tensor = torch.Tensor
Lods = list[Any]


def kept_boxes(boxes: Tensor, scores: Tensor, limit: float, eta: float, extra: float) -> Tensor:
    """Return the indices of boxes, best first, that overlap better boxes by at most the limit."""
    order = scores.argsort(descending=True, stable=True)
    shared = overlaps(boxes[order], boxes[order], extra)
    kept: list[int] = []
    for place in range(len(order)):
        if not kept or bool((shared[place, kept] <= limit).all()):
            kept.append(place)
            if eta < 1 and limit > 0.5:
                limit *= eta
    return order[kept]


def best_places(scores: Tensor, threshold: float, count: int) -> Tensor:
    """Return the indices of scores above the threshold, best first.

    If `count` >= 0, returns at most `count` indices.
    """
    places = (scores > threshold).nonzero().reshape(-1)
    order = scores[places].argsort(descending=True, stable=True)
    return places[order[:count] if count >= 0 else order]


def lod_of_lengths(lengths: Sequence[int]) -> Any:
    """Return a one-level LoD from lengths."""
    return (torch.tensor([0, *lengths]).cumsum(0),)


@op(
    "multiclass_nms2",
    "BBoxes Scores",
    "Out Index",
    lod="function",
    infer=lambda *_, **__: [(-1, 6), (-1, 1)],
)
def multiclass_nms_op(
    boxes: Tensor,
    scores: Tensor,
    *,
    lods: Lods,
    score_threshold: float,
    nms_top_k: int,
    keep_top_k: int,
    nms_threshold: float,
    normalized: bool,
    nms_eta: float,
    background_label: int,
) -> tuple[list[Tensor], Any]:
    """Return rows (label, score, box) for each image: boxes [N, M, 4], scores [N, C, M].

    Also takes boxes [M, C, 4] and scores [M, C] with a LoD of images.
    """
    extra = 0.0 if normalized else 1.0
    by_lod = scores.dim() == 2
    pictures = parts_of(lods[0], len(boxes)) if by_lod else [(n, n + 1) for n in range(len(boxes))]
    rows, places, lengths = [], [], []
    for begin, end in pictures:
        found: list[tuple[float, int, int, Tensor]] = []
        known = scores[begin:end].T if by_lod else scores[begin]
        for label in range(len(known)):
            if label == background_label:
                continue
            own = boxes[begin:end, label] if by_lod else boxes[begin]
            first = best_places(known[label], score_threshold, nms_top_k)
            kept = first[kept_boxes(own[first], known[label][first], nms_threshold, nms_eta, extra)]
            width = len(known) if by_lod else 1
            for place in kept.tolist():
                number = (begin + place) * width + label if by_lod else begin * len(own) + place
                found.append((float(known[label, place]), label, number, own[place]))
        found.sort(key=lambda one: -one[0])
        if keep_top_k >= 0:
            found = found[:keep_top_k]
        found.sort(key=lambda one: one[1])
        for score, label, number, box in found:
            rows.append(torch.cat([box.new_tensor([float(label), score]), box]))
            places.append(number)
        lengths.append(len(found))
    if not rows:
        return [boxes.new_full((1, 1), -1.0), torch.zeros((0, 1), dtype=torch.int32)], (
            lod_of_lengths([1])
        )
    index = torch.tensor(places, dtype=torch.int32).reshape(-1, 1)
    return [torch.stack(rows), index], lod_of_lengths(lengths)


@op(
    "matrix_nms",
    "BBoxes Scores",
    "Out Index",
    lod="function",
    infer=lambda *_, **__: [(-1, 6), (-1, 1)],
)
def matrix_nms_op(
    boxes: Tensor,
    scores: Tensor,
    *,
    lods: Lods,
    score_threshold: float,
    post_threshold: float,
    nms_top_k: int,
    keep_top_k: int,
    use_gaussian: bool,
    gaussian_sigma: float,
    background_label: int,
    normalized: bool,
) -> tuple[list[Tensor], Any]:
    """Apply `multiclass_nms`, but lower scores by overlap instead of dropping boxes."""
    del lods
    extra = 0.0 if normalized else 1.0
    rows, places, lengths = [], [], []
    for picture in range(len(boxes)):
        found: list[tuple[float, int, int]] = []
        for label in range(scores.shape[1]):
            if label == background_label:
                continue
            first = best_places(scores[picture, label], score_threshold, nms_top_k)
            if not len(first):
                continue
            shared = overlaps(boxes[picture][first], boxes[picture][first], extra).tril(-1)
            most = shared.max(1).values  # the largest overlap with any better box
            if use_gaussian:
                decay = torch.exp((most[None] ** 2 - shared**2) * gaussian_sigma)
            else:
                decay = (1 - shared) / (1 - most[None])
            is_better = torch.ones_like(shared).tril(-1).bool()
            lowest = torch.where(is_better, decay, torch.ones_like(decay)).min(1).values
            for place, score in zip(
                first.tolist(), (scores[picture, label][first] * lowest).tolist(), strict=True
            ):
                if score > post_threshold:
                    found.append((score, label, place))
        found.sort(key=lambda one: -one[0])
        found = found[:keep_top_k] if keep_top_k >= 0 else found
        for score, label, place in found:
            box = boxes[picture, place]
            rows.append(torch.cat([box.new_tensor([float(label), score]), box]))
            places.append(picture * boxes.shape[1] + place)
        lengths.append(len(found))
    out = torch.stack(rows) if rows else boxes.new_zeros((0, 6))
    return [out, torch.tensor(places, dtype=torch.int32).reshape(-1, 1)], lod_of_lengths(lengths)


@op(
    "yolo_box",
    "X ImgSize",
    "Boxes Scores",
    lod="none",
    infer=lambda x, _, *, anchors, class_num, **__: [
        (x[0], _places(x, anchors), 4),
        (x[0], _places(x, anchors), class_num),
    ],
)
def yolo_box_op(
    x: Tensor,
    img_size: Tensor,
    *,
    anchors: Sequence[int],
    class_num: int,
    conf_thresh: float,
    downsample_ratio: int,
    clip_bbox: bool = True,
    scale_x_y: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Return the boxes and class scores of a YOLOv3 head's output, x [N, A (5 + C), H, W]."""
    count, _, height, width = x.shape
    sizes = torch.tensor(list(anchors), dtype=x.dtype).reshape(-1, 2)
    head = x.reshape(count, len(sizes), 5 + class_num, height, width)
    shift = -0.5 * (scale_x_y - 1.0)
    whole = img_size.to(x.dtype).reshape(count, 1, 1, 1, 2)
    columns = torch.arange(width, dtype=x.dtype)
    rows = torch.arange(height, dtype=x.dtype)[:, None]
    middle_x = (columns + head[:, :, 0].sigmoid() * scale_x_y + shift) / width * whole[..., 1]
    middle_y = (rows + head[:, :, 1].sigmoid() * scale_x_y + shift) / height * whole[..., 0]
    anchor = sizes.reshape(1, -1, 1, 1, 2)
    wide = head[:, :, 2].exp() * anchor[..., 0] / (downsample_ratio * width) * whole[..., 1]
    high = head[:, :, 3].exp() * anchor[..., 1] / (downsample_ratio * height) * whole[..., 0]
    boxes = torch.stack(
        [middle_x - wide / 2, middle_y - high / 2, middle_x + wide / 2, middle_y + high / 2], -1
    )
    if clip_bbox:
        limit = torch.stack([whole[..., 1], whole[..., 0]] * 2, -1) - 1
        boxes = torch.minimum(boxes.clamp(min=0), limit)
    sure = head[:, :, 4].sigmoid()
    is_sure = (sure >= conf_thresh).to(x.dtype)
    scores = head[:, :, 5:].sigmoid() * (sure * is_sure)[:, :, None]
    boxes = boxes * is_sure[..., None]
    return boxes.reshape(count, -1, 4), scores.movedim(2, -1).reshape(count, -1, class_num)


def _places(x: tuple[int, ...], anchors: Sequence[int]) -> int:
    return x[2] * x[3] * (len(anchors) // 2) if min(x[2:]) > 0 else -1


@op(
    "generate_proposals",
    "Scores BboxDeltas ImInfo Anchors Variances",
    "RpnRois RpnRoiProbs",
    lod="function",
    infer=lambda *_, **__: [(-1, 4), (-1, 1)],
)
def generate_proposals_op(
    scores: Tensor,
    deltas: Tensor,
    im_info: Tensor,
    anchors: Tensor,
    variances: Tensor,
    *,
    lods: Lods,
    pre_nms_topN: int,  # noqa: N803  Fluid's name
    post_nms_topN: int,  # noqa: N803
    nms_thresh: float,
    min_size: float,
    eta: float,
) -> tuple[list[Tensor], Any]:
    """Return a region proposal network's best boxes in each image."""
    del lods
    flat_anchors, flat_variances = anchors.reshape(-1, 4), variances.reshape(-1, 4)
    rois, chances, lengths = [], [], []
    for picture in range(len(scores)):
        score = scores[picture].permute(1, 2, 0).reshape(-1)
        delta = deltas[picture].permute(1, 2, 0).reshape(-1, 4)
        order = score.argsort(descending=True, stable=True)[: max(pre_nms_topN, 0) or None]
        variance, anchor = flat_variances[order], flat_anchors[order]
        limited = torch.cat([delta[order][:, :2], delta[order][:, 2:].clamp(max=4.135)], 1)
        boxes = clip_to_image(decode(limited, anchor, variance, 1.0), _unscaled(im_info[picture]))
        least = max(min_size, 1.0)
        scale = im_info[picture, 2]
        sizes = (boxes[:, 2:] - boxes[:, :2]) / scale + 1
        middle = (boxes[:, :2] + boxes[:, 2:] + 1) / 2
        inside = (middle[:, 0] <= im_info[picture, 1]) & (middle[:, 1] <= im_info[picture, 0])
        fits = (sizes >= least).all(1) & inside
        boxes, score = boxes[fits], score[order][fits]
        kept = kept_boxes(boxes, score, nms_thresh, eta, 1.0)
        kept = kept[:post_nms_topN] if post_nms_topN > 0 else kept
        rois.append(boxes[kept])
        chances.append(score[kept].reshape(-1, 1))
        lengths.append(len(kept))
    return [torch.cat(rois), torch.cat(chances)], lod_of_lengths(lengths)


def _level_shapes(rois: Shape, **settings: Any) -> list[Shape]:
    del rois
    count = settings["max_level"] - settings["min_level"] + 1
    return [*[(-1, 4)] * count, (-1, 1)]


def _unscaled(info: Tensor) -> Tensor:
    """Return the image info with scale 1, since the image is already scaled."""
    return torch.cat([info[:2], info.new_ones(1)])


@op(
    "distribute_fpn_proposals",
    "FpnRois",
    "MultiFpnRois* RestoreIndex",
    lod="function",
    infer=_level_shapes,
)
def distribute_fpn_proposals_op(
    rois: Tensor, *, lods: Lods, min_level: int, max_level: int, refer_level: int, refer_scale: int
) -> tuple[list[Any], Any]:
    """Assign each box to the pyramid level that fits its size.

    Also returns the indices that restore the original order.
    """
    del lods
    scale = area(rois, 1.0).clamp(min=0).sqrt()
    level = (torch.log2(scale / refer_scale + 1e-8).floor() + refer_level).long()
    level = level.clamp(min_level, max_level)
    places = [(level == one).nonzero().reshape(-1) for one in range(min_level, max_level + 1)]
    order = torch.cat(places)
    restore = torch.empty_like(order)
    restore[order] = torch.arange(len(order))
    return [[rois[one] for one in places], restore.to(torch.int32).reshape(-1, 1)], ()


@op(
    "collect_fpn_proposals",
    "MultiLevelRois* MultiLevelScores*",
    "FpnRois",
    lod="none",
    infer=lambda *_, **__: [(-1, 4)],
)
def collect_fpn_proposals_op(
    rois: list[Tensor],
    scores: list[Tensor],
    *,
    post_nms_topN: int,  # noqa: N803  Fluid's name
) -> Tensor:
    """Return the best boxes across all levels."""
    order = torch.cat([one.reshape(-1) for one in scores]).argsort(descending=True, stable=True)
    return torch.cat(rois)[order[:post_nms_topN]]


# -- layers -----------------------------------------------------------------------------------


def _suppressed(
    helper: LayerHelper, bboxes: Variable, scores: Variable, attrs: dict[str, Any]
) -> list[Variable]:
    inputs = {"BBoxes": bboxes, "Scores": scores}
    kinds = [bboxes.dtype, "int32"]
    made = helper.add_all("multiclass_nms2", inputs, attrs, kinds, stop_gradient=True)
    for one in made:
        one.lod_level = 1
    return made


@layer
def multiclass_nms(
    bboxes: Variable,
    scores: Variable,
    score_threshold: float,
    nms_top_k: int,
    keep_top_k: int,
    nms_threshold: float = 0.3,
    normalized: bool = True,
    nms_eta: float = 1.0,
    background_label: int = 0,
    name: str | None = None,
) -> Variable:
    """Return rows (label, score, box) for boxes that do not overlap a better box in their class."""
    helper = LayerHelper("multiclass_nms", name)
    helper.check_input(bboxes, "bboxes")
    helper.check_input(scores, "scores")
    return _suppressed(helper, bboxes, scores, op_settings("multiclass_nms2", locals()))[0]


@layer
def multiclass_nms2(
    bboxes: Variable,
    scores: Variable,
    score_threshold: float,
    nms_top_k: int,
    keep_top_k: int,
    nms_threshold: float = 0.3,
    normalized: bool = True,
    nms_eta: float = 1.0,
    background_label: int = 0,
    return_index: bool = False,
    name: str | None = None,
) -> Any:
    """Apply `multiclass_nms`; with return_index, also return the indices of the boxes."""
    helper = LayerHelper("multiclass_nms2", name)
    attrs = op_settings("multiclass_nms2", locals())
    out, index = _suppressed(helper, bboxes, scores, attrs)
    return (out, index) if return_index else out


@layer
def matrix_nms(
    bboxes: Variable,
    scores: Variable,
    score_threshold: float,
    post_threshold: float,
    nms_top_k: int,
    keep_top_k: int,
    use_gaussian: bool = False,
    gaussian_sigma: float = 2.0,
    background_label: int = 0,
    normalized: bool = True,
    return_index: bool = False,
    name: str | None = None,
) -> Any:
    """Apply `multiclass_nms`, but lower scores by overlap instead of dropping boxes."""
    helper = LayerHelper("matrix_nms", name)
    attrs = op_settings("matrix_nms", locals())
    inputs = {"BBoxes": bboxes, "Scores": scores}
    kinds = [bboxes.dtype, "int32"]
    out, index = helper.add_all("matrix_nms", inputs, attrs, kinds, stop_gradient=True)
    return (out, index) if return_index else out


@layer
def detection_output(
    loc: Variable,
    scores: Variable,
    prior_box: Variable,
    prior_box_var: Variable,
    background_label: int = 0,
    nms_threshold: float = 0.3,
    nms_top_k: int = 400,
    keep_top_k: int = 200,
    score_threshold: float = 0.01,
    nms_eta: float = 1.0,
    return_index: bool = False,
) -> Any:
    """Return an SSD head's detections: decoded boxes, after non-maximum suppression."""
    helper = LayerHelper("detection_output")
    boxes = box_coder(prior_box, prior_box_var, loc, code_type="decode_center_size")
    chances = transpose(softmax(scores), perm=[0, 2, 1])
    chances.stop_gradient = True
    attrs = op_settings("multiclass_nms2", locals(), normalized=True)
    out, index = _suppressed(helper, boxes, chances, attrs)
    return (out, index) if return_index else out


@layer
def yolo_box(
    x: Variable,
    img_size: Variable,
    anchors: Sequence[int],
    class_num: int,
    conf_thresh: float,
    downsample_ratio: int,
    clip_bbox: bool = True,
    name: str | None = None,
    scale_x_y: float = 1.0,
) -> tuple[Variable, ...]:
    """Return a YOLOv3 head's boxes and class scores."""
    helper = LayerHelper("yolo_box", name)
    if not isinstance(anchors, (list, tuple)):
        raise TypeError(f"anchors must be a list, got {anchors!r}")
    if not isinstance(class_num, int):
        raise TypeError(f"class_num must be an int, got {class_num!r}")
    if not isinstance(conf_thresh, float):
        raise TypeError(f"conf_thresh must be a float, got {conf_thresh!r}")
    attrs = op_settings("yolo_box", locals(), anchors=list(anchors))
    inputs = {"X": helper.check_input(x, "x"), "ImgSize": helper.check_input(img_size, "img_size")}
    return tuple(helper.add_all("yolo_box", inputs, attrs))


@layer
def generate_proposals(
    scores: Variable,
    bbox_deltas: Variable,
    im_info: Variable,
    anchors: Variable,
    variances: Variable,
    pre_nms_top_n: int = 6000,
    post_nms_top_n: int = 1000,
    nms_thresh: float = 0.5,
    min_size: float = 0.1,
    eta: float = 1.0,
    name: str | None = None,
) -> tuple[Variable, ...]:
    """Return a region proposal network's best boxes, and their probabilities."""
    helper = LayerHelper("generate_proposals", name)
    inputs = {
        "Scores": scores,
        "BboxDeltas": bbox_deltas,
        "ImInfo": im_info,
        "Anchors": anchors,
        "Variances": variances,
    }
    attrs = op_settings(
        "generate_proposals", locals(), pre_nms_topN=pre_nms_top_n, post_nms_topN=post_nms_top_n
    )
    made = helper.add_all("generate_proposals", inputs, attrs, stop_gradient=True)
    for one in made:
        one.lod_level = 1
    return tuple(made)


@layer
def distribute_fpn_proposals(
    fpn_rois: Variable,
    min_level: int,
    max_level: int,
    refer_level: int,
    refer_scale: int,
    name: str | None = None,
) -> tuple[list[Variable], Variable]:
    """Assign each box to the pyramid level that fits its size.

    Also returns the indices that restore the original order.
    """
    helper = LayerHelper("distribute_fpn_proposals", name)
    levels = [helper.new_variable(fpn_rois.dtype) for _ in range(min_level, max_level + 1)]
    restore = helper.new_variable("int32", stop_gradient=True)
    attrs = op_settings("distribute_fpn_proposals", locals())
    outputs = {"MultiFpnRois": levels, "RestoreIndex": restore}
    helper.append_op("distribute_fpn_proposals", {"FpnRois": fpn_rois}, outputs, attrs)
    return levels, restore


@layer
def collect_fpn_proposals(
    multi_rois: Sequence[Variable],
    multi_scores: Sequence[Variable],
    min_level: int,
    max_level: int,
    post_nms_top_n: int,
    name: str | None = None,
) -> Variable:
    """Return the best boxes across all pyramid levels."""
    helper = LayerHelper("collect_fpn_proposals", name)
    count = max_level - min_level + 1
    inputs = {
        "MultiLevelRois": list(multi_rois)[:count],
        "MultiLevelScores": list(multi_scores)[:count],
    }
    attrs = {"post_nms_topN": post_nms_top_n}
    return helper.add("collect_fpn_proposals", inputs, attrs, slot="FpnRois", stop_gradient=True)
