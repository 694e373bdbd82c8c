"""Final stages of detectors: suppression across levels and neighbors, masks, and precision."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.lowering.registry import Shape, op
from sparsefleet.fluid.operators.boxes import (
    clip_to_image,
    decode,
    overlaps,
    parts_of,
)
from sparsefleet.fluid.operators.layer_helper import LayerHelper, layer, op_settings
from sparsefleet.fluid.operators.suppression import best_places, kept_boxes, lod_of_lengths

__all__ = [
    "detection_map",
    "generate_mask_labels",
    "locality_aware_nms",
    "retinanet_detection_output",
]

Tensor = torch.Tensor
Lods = list[Any]


@op(
    "retinanet_detection_output",
    "BBoxes* Scores* Anchors* ImInfo",
    lod="function",
    infer=lambda *_, **__: [(-1, 6)],
)
def retinanet_detection_output_op(
    boxes: list[Tensor],
    scores: list[Tensor],
    anchors: list[Tensor],
    im_info: Tensor,
    *,
    lods: Lods,
    score_threshold: float,
    nms_top_k: int,
    nms_threshold: float,
    keep_top_k: int,
    nms_eta: float = 1.0,
) -> tuple[Tensor, Any]:
    """Return rows (label, score, box) for each image from the predictions on all levels."""
    del lods
    rows, lengths = [], []
    for picture in range(len(im_info)):
        found: list[Tensor] = []
        for level, deltas in enumerate(boxes):
            known = scores[level][picture]
            least = score_threshold if level < len(boxes) - 1 else 0.0
            best = best_places(known.reshape(-1), least, nms_top_k)
            anchor, label = best // known.shape[1], best % known.shape[1]
            made = decode(deltas[picture][anchor], anchors[level][anchor], None, 1.0)
            made = clip_to_image(made / im_info[picture, 2], im_info[picture])
            values = known.reshape(-1)[best][:, None]
            found.append(torch.cat([label[:, None].to(made.dtype), values, made], 1))
        whole = torch.cat(found)
        kept = []
        for label in sorted(set(whole[:, 0].tolist())):
            own = whole[whole[:, 0] == label]
            kept.append(own[kept_boxes(own[:, 2:], own[:, 1], nms_threshold, nms_eta, 1.0)])
        joined = torch.cat(kept) if kept else whole
        order = joined[:, 1].argsort(descending=True, stable=True)[: max(keep_top_k, 0) or None]
        rows.append(joined[order])
        lengths.append(len(order))
    if not any(lengths):
        return im_info.new_full((1, 1), -1.0), lod_of_lengths([1])
    return torch.cat(rows), lod_of_lengths(lengths)


def _polygon_overlap(one: Tensor, other: Tensor) -> float:
    """Return the intersection over union of two convex polygons [2 n]."""
    first, second = (x.reshape(-1, 2).double().tolist() for x in (one, other))
    areas = [_area(points) for points in (first, second)]
    if areas[1] < 0:
        second = second[::-1]
    clipped = first
    for start, end in zip(second, [*second[1:], second[0]], strict=True):
        points, clipped = clipped, []
        sides = [
            (end[0] - start[0]) * (y - start[1]) - (end[1] - start[1]) * (x - start[0])
            for x, y in points
        ]
        for place, (x, y) in enumerate(points):
            before = place - 1
            if (sides[place] < 0) != (sides[before] < 0):
                share = sides[before] / (sides[before] - sides[place])
                px, py = points[before]
                clipped.append([px + share * (x - px), py + share * (y - py)])
            if sides[place] >= 0:
                clipped.append([x, y])
    both = abs(_area(clipped))
    total = abs(areas[0]) + abs(areas[1]) - both
    return both / total if both and total else 0.0


def _area(points: list[list[float]]) -> float:
    """Return the signed area of a polygon; the order of the corners determines the sign."""
    pairs = zip(points, [*points[1:], *points[:1]], strict=True)
    return sum(x * v - u * y for (x, y), (u, v) in pairs) / 2


@op(
    "locality_aware_nms",
    "BBoxes Scores",
    lod="function",
    infer=lambda boxes, *_, **__: [(-1, boxes[2] + 2)],
)
def locality_aware_nms_op(
    boxes: Tensor,
    scores: Tensor,
    *,
    lods: Lods,
    score_threshold: float,
    nms_top_k: int,
    keep_top_k: int,
    nms_threshold: float = 0.3,
    nms_eta: float = 1.0,
    normalized: bool = True,
    background_label: int = -1,
) -> tuple[Tensor, Any]:
    """Merge neighboring boxes that overlap, weighted by score, then suppress as usual.

    boxes: [N, M, 4], or polygons [N, M, 8, 16, 24 or 32]; scores [N, C, M].
    """
    del lods
    extra = 0.0 if normalized else 1.0

    def shared(one: Tensor, other: Tensor) -> float:
        if len(one) == 4:
            return float(overlaps(one[None], other[None], extra))
        return _polygon_overlap(one, other)

    rows, lengths = [], []
    for picture in range(len(boxes)):
        found: list[tuple[float, int, Tensor]] = []
        own = boxes[picture].clone()
        for label in range(scores.shape[1]):
            if label == background_label:
                continue
            score = scores[picture, label].clone()
            heads: list[int] = []
            for place in range(len(own)):
                if heads and shared(own[place], own[heads[-1]]) > nms_threshold:
                    head, weight = heads[-1], score[place] + score[heads[-1]]
                    own[head] = (own[place] * score[place] + own[head] * score[head]) / weight
                    score[head] = weight
                else:
                    heads.append(place)
            merged = torch.tensor(heads)
            best = merged[best_places(score[merged], score_threshold, nms_top_k)]
            kept: list[int] = []
            limit = nms_threshold
            for place in best.tolist():
                if all(shared(own[place], own[other]) <= limit for other in kept):
                    kept.append(place)
                    if nms_eta < 1 and limit > 0.5:
                        limit *= nms_eta
            found += [(float(score[place]), label, own[place].clone()) for place in kept]
        if 0 <= keep_top_k < len(found):
            found = sorted(found, key=lambda one: -one[0])[:keep_top_k]
            found.sort(key=lambda one: one[1])
        rows += [torch.cat([box.new_tensor([float(n), value]), box]) for value, n, box in found]
        lengths.append(len(found))
    if not rows:
        return boxes.new_full((1, 1), -1.0), lod_of_lengths([1])
    return torch.stack(rows), lod_of_lengths(lengths)


@op(
    "detection_map",
    "DetectRes Label HasState? PosCount? TruePos? FalsePos?",
    "MAP AccumPosCount AccumTruePos AccumFalsePos",
    lod="function",
    infer=lambda *_, class_num, **__: [(1,), (class_num, 1), (-1, 3), (-1, 3)],
)
def detection_map_op(
    found: Tensor,
    truth: Tensor,
    has_state: Tensor | None,
    counts: Tensor | None,
    true: Tensor | None,
    false: Tensor | None,
    *,
    lods: Lods,
    class_num: int,
    background_label: int = 0,
    overlap_threshold: float = 0.3,
    evaluate_difficult: bool = True,
    ap_type: str = "integral",
) -> tuple[list[Tensor], Any]:
    """Return the mean average precision, and the state for the next call.

    found: rows (label, score, box). truth: (label, box) or (label, is difficult, box). State:
        counts of ground-truth boxes [C, 1], and true and false detections as rows (label, score, 0
        or 1).
    """
    use_state = has_state is not None and bool(int(has_state)) and counts is not None
    totals = torch.zeros(class_num, dtype=torch.int64)
    hits: list[tuple[int, float, int]] = []
    if use_state and counts is not None and true is not None:
        totals += counts.reshape(-1).long()
        hits = [(int(row[0]), row[1], int(row[2])) for row in true.tolist()]
    images = zip(parts_of(lods[0], len(found)), parts_of(lods[1], len(truth)), strict=True)
    for own, known in images:
        boxes = truth[slice(*known)]
        hard = boxes[:, 1].abs() >= 1e-6 if boxes.shape[1] == 6 else torch.zeros(len(boxes)) > 0
        counted = boxes[:, 0][torch.ones_like(hard) if evaluate_difficult else ~hard].long()
        totals += torch.bincount(counted, minlength=class_num)[:class_num]
        rows = found[slice(*own)]
        for label in sorted(set(rows[:, 0].tolist())):
            mine = rows[rows[:, 0] == label]
            mine = mine[mine[:, 1].argsort(descending=True, stable=True)]
            there = (boxes[:, 0] == label).nonzero().reshape(-1)
            shared = overlaps(mine[:, 2:6].clamp(0, 1), boxes[there][:, -4:])
            taken: set[int] = set()
            for row, near in zip(mine, shared, strict=True):
                place = int(near.argmax()) if len(near) else -1
                is_hit = place >= 0 and float(near[place]) > overlap_threshold
                if is_hit and not evaluate_difficult and bool(hard[there[place]]):
                    continue
                is_hit = is_hit and place not in taken
                taken |= {place} if is_hit else set()
                hits.append((int(label), float(row[1]), int(is_hit)))
    score = _mean_precision(totals, hits, background_label, ap_type)
    table = torch.tensor(hits, dtype=torch.float32).reshape(-1, 3)
    missed = torch.cat([table[:, :2], 1 - table[:, 2:]], 1)
    del false
    return [torch.tensor([score]), totals.int().reshape(-1, 1), table, missed], ()


def _mean_precision(
    totals: Tensor, hits: list[tuple[int, float, int]], background: int, ap_type: str
) -> float:
    precisions = []
    for label, count in enumerate(totals.tolist()):
        own = sorted(((s, hit) for one, s, hit in hits if one == label), key=lambda x: -x[0])
        # Fluid compares the count with the background label, not the label.
        if count == background or (count == 0 and not own):
            continue
        right = np.cumsum([hit for _, hit in own])
        precision = right / np.arange(1, len(own) + 1)
        recall = right / max(count, 1)
        if ap_type == "11point":
            steps = [precision[recall >= step / 10.0].max(initial=0.0) for step in range(11)]
            precisions.append(float(np.mean(steps)))
        else:
            gains = np.diff(recall, prepend=0.0)
            precisions.append(float((precision * gains).sum()))
    return float(np.mean(precisions)) if precisions else 0.0


def _mask_shapes(*_: Any, num_classes: int, resolution: int, **__: Any) -> list[Shape]:
    return [(-1, 4), (-1, 1), (-1, num_classes * resolution * resolution)]


@op(
    "generate_mask_labels",
    "ImInfo GtClasses IsCrowd GtSegms Rois LabelsInt32",
    "MaskRois RoiHasMaskInt32 MaskInt32",
    lod="function",
    infer=_mask_shapes,
)
def generate_mask_labels_op(
    im_info: Tensor,
    classes: Tensor,
    crowd: Tensor,
    points: Tensor,
    rois: Tensor,
    labels: Tensor,
    *,
    lods: Lods,
    num_classes: int,
    resolution: int,
) -> tuple[list[Tensor], Any]:
    """Return the boxes of objects, their positions among all boxes, and their masks by class.

    points: corners of polygons [P, 2]; its LoD levels are the objects in an image, the polygons of
    an object and the corners of a polygon. A mask is -1 for other classes; an image without objects
    gets one box with a mask of only -1.
    """
    made: list[list[Tensor]] = []
    polygons, corners = lods[3][1].tolist(), lods[3][2].tolist()
    objects = parts_of(lods[3][:1], len(classes))
    per_image = (parts_of(lods[n], len(x)) for n, x in ((1, classes), (2, crowd), (4, rois)))
    for number, (own, lone, mine) in enumerate(zip(*per_image, strict=True)):
        scale = im_info[number, 2]
        label = labels[slice(*mine)].reshape(-1)
        is_used = (classes[slice(*own)].reshape(-1) > 0) & (crowd[slice(*lone)].reshape(-1) == 0)
        shapes = []
        for place in is_used.nonzero().reshape(-1).tolist():
            first, last = polygons[objects[number][0] + place : objects[number][0] + place + 2]
            shapes.append([points[corners[n] : corners[n + 1]] for n in range(first, last)])
        front = (label > 0).nonzero().reshape(-1)
        masks = torch.full((max(len(front), 1), num_classes, resolution**2), -1, dtype=torch.int32)
        if len(front):
            boxes = rois[slice(*mine)][front] / scale
            around = torch.stack(
                [torch.cat([torch.cat(s).amin(0), torch.cat(s).amax(0)]) for s in shapes]
            )
            for row, near in enumerate(overlaps(boxes, around, 1.0).argmax(1).tolist()):
                drawn = _drawn(shapes[near], boxes[row], resolution)
                masks[row, int(label[front[row]])] = torch.from_numpy(drawn.reshape(-1))
            found = [boxes * scale, front.to(torch.int32).reshape(-1, 1)]
        else:
            back = (label == 0).nonzero().reshape(-1)[:1]
            found = [rois[slice(*mine)][:1], back.to(torch.int32).reshape(-1, 1)]
        made.append([*found, masks.reshape(len(masks), -1)])
    lengths = [len(part[0]) for part in made]
    return [torch.cat(column) for column in zip(*made, strict=True)], lod_of_lengths(lengths)


def _drawn(polygons: list[Tensor], box: Tensor, size: int) -> Any:
    """Draw a mask int32[size, size] of polygons within a box, like COCO's tools."""
    whole = np.zeros((size, size), np.int32)
    low, sides = box[:2], (box[2:] - box[:2]).clamp(min=1.0)
    for polygon in polygons:
        scaled = ((polygon - low) * size / sides).double().numpy()
        whole |= _filled(scaled, size)
    return whole


def _filled(points: Any, size: int) -> Any:
    """Fill a polygon by tracing its border on a 5x finer grid and toggling below each crossing."""
    scale = 5.0
    corners = (scale * points + 0.5).astype(int)
    border: list[tuple[int, int]] = []
    for (xs, ys), (xe, ye) in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        wide, high = abs(xe - xs), abs(ye - ys)
        turned = (wide >= high and xs > xe) or (wide < high and ys > ye)
        if turned:
            xs, xe, ys, ye = xe, xs, ye, ys
        steps = np.arange(max(wide, high) + 1)
        if turned:
            steps = steps[::-1]
        if wide >= high:
            slope = (ye - ys) / wide if wide else 0.0
            border += [(t + xs, int(ys + slope * t + 0.5)) for t in steps]
        else:
            slope = (xe - xs) / high
            border += [(int(xs + slope * t + 0.5), t + ys) for t in steps]
    toggles = np.zeros(size * size + 1, np.int32)
    for (u0, v0), (u1, v1) in pairwise(border):
        if u0 == u1:
            continue
        column = ((u1 if u1 < u0 else u1 - 1) + 0.5) / scale - 0.5
        if column != np.floor(column) or not 0 <= column <= size - 1:
            continue
        row = np.ceil(np.clip((min(v0, v1) + 0.5) / scale - 0.5, 0, size))
        toggles[int(column) * size + int(row)] += 1
    return (np.cumsum(toggles[:-1]) % 2).reshape(size, size).T.astype(np.int32)


# -- layers -----------------------------------------------------------------------------------


@layer
def retinanet_detection_output(
    bboxes: Sequence[Variable],
    scores: Sequence[Variable],
    anchors: Sequence[Variable],
    im_info: Variable,
    score_threshold: float = 0.05,
    nms_top_k: int = 1000,
    keep_top_k: int = 100,
    nms_threshold: float = 0.3,
    nms_eta: float = 1.0,
) -> Variable:
    """Return detections (label, score, box) from the predictions of all pyramid levels."""
    helper = LayerHelper("retinanet_detection_output")
    inputs: dict[str, Any] = {"ImInfo": helper.check_input(im_info, "im_info")}
    for slot, what, given in (
        ("BBoxes", "bboxes", bboxes),
        ("Scores", "scores", scores),
        ("Anchors", "anchors", anchors),
    ):
        if not isinstance(given, list):
            raise TypeError(f"{what} must be a list of Variables, got {given!r}")
        inputs[slot] = [helper.check_input(one, what) for one in given]
        if any(one.dtype not in ("float32", "float64") for one in given):
            raise TypeError(f"{what} must be float32 or float64, got {given!r}")
    attrs = op_settings("retinanet_detection_output", locals())
    type, dtype = "retinanet_detection_output", inputs["Scores"][0].dtype
    out = helper.add(type, inputs, attrs, dtype=dtype, stop_gradient=True)
    out.lod_level = 1
    return out


@layer
def locality_aware_nms(
    bboxes: Variable,
    scores: Variable,
    score_threshold: float,
    nms_top_k: int,
    keep_top_k: int,
    nms_threshold: float = 0.3,
    normalized: bool = True,
    nms_eta: float = 1.0,
    background_label: int = -1,
    name: str | None = None,
) -> Variable:
    """Merge neighboring boxes or quadrangles, then keep the best: rows (label, score, box)."""
    helper = LayerHelper("locality_aware_nms", name)
    if len(scores.shape) != 3 or scores.shape[1] != 1:
        raise AssertionError(f"scores must have the shape [N, 1, M], got {list(scores.shape)}")
    attrs = op_settings("locality_aware_nms", locals())
    inputs = {"BBoxes": bboxes, "Scores": scores}
    out = helper.add("locality_aware_nms", inputs, attrs, dtype=bboxes.dtype, stop_gradient=True)
    out.lod_level = 1
    return out


@layer
def detection_map(
    detect_res: Variable,
    label: Variable,
    class_num: int,
    background_label: int = 0,
    overlap_threshold: float = 0.3,
    evaluate_difficult: bool = True,
    has_state: Variable | None = None,
    input_states: Sequence[Variable] | None = None,
    out_states: Sequence[Variable] | None = None,
    ap_version: str = "integral",
) -> Variable:
    """Return the mean average precision of detections, accumulated across batches in states."""
    helper = LayerHelper("detection_map")
    if ap_version not in ("integral", "11point"):
        raise ValueError(f"ap_version must be 'integral' or '11point', got {ap_version!r}")
    score = helper.new_variable("float32", stop_gradient=True)
    states = list(out_states or ())
    while len(states) < 3:
        states.append(helper.new_variable("float32" if states else "int32", stop_gradient=True))
    inputs: dict[str, Any] = {"DetectRes": detect_res, "Label": label}
    if has_state is not None and input_states is not None:
        slots = ("PosCount", "TruePos", "FalsePos")
        inputs |= {"HasState": has_state, **dict(zip(slots, input_states, strict=True))}
    slots = ("AccumPosCount", "AccumTruePos", "AccumFalsePos")
    outputs = {"MAP": score, **dict(zip(slots, states, strict=True))}
    attrs = op_settings("detection_map", locals(), ap_type=ap_version)
    helper.append_op("detection_map", inputs, outputs, attrs)
    return score


@layer
def generate_mask_labels(
    im_info: Variable,
    gt_classes: Variable,
    is_crowd: Variable,
    gt_segms: Variable,
    rois: Variable,
    labels_int32: Variable,
    num_classes: int,
    resolution: int,
) -> tuple[Variable, ...]:
    """Return the boxes that have a mask, their positions, and the masks to train on."""
    helper = LayerHelper("generate_mask_labels")
    inputs = {
        "ImInfo": im_info,
        "GtClasses": gt_classes,
        "IsCrowd": is_crowd,
        "GtSegms": gt_segms,
        "Rois": rois,
        "LabelsInt32": labels_int32,
    }
    attrs = {"num_classes": num_classes, "resolution": resolution}
    kinds = [rois.dtype, "int32", "int32"]
    made = helper.add_all("generate_mask_labels", inputs, attrs, kinds, stop_gradient=True)
    for one in made:
        one.lod_level = 1
    return tuple(made)
