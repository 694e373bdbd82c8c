"""Losses, targets and poolings of detectors."""

from __future__ import annotations

import numpy as np

from .case import add, floats, ints


def boxes(*shape, size, seed=3):
    """Return boxes [..., 4] of positive size within an image of that size."""
    generator = np.random.RandomState(seed)
    first = generator.uniform(0, size * 0.6, (*shape, 2))
    return np.concatenate(
        [first, first + generator.uniform(2, size * 0.4, (*shape, 2))], -1
    ).astype("float32")


CENTERED = np.array(
    [
        [[0.3, 0.4, 0.3, 0.2], [0.7, 0.6, 0.1, 0.4], [0.0, 0.0, 0.0, 0.0]],
        [[0.5, 0.5, 0.6, 0.7], [0.82, 0.31, 0.5, 0.6], [0.9, 0.1, 0.1, 0.1]],
    ],
    "float32",
)
ANCHORS = [10, 13, 16, 30, 33, 23, 30, 61]
ANCHOR_BOXES = boxes(24, size=40, seed=5)
TRUE_BOXES = boxes(5, size=40, seed=6)
INFO = np.array([[40, 40, 1.0], [38, 36, 0.9]], "float32")
NOT_CROWD = np.array([0, 0, 1, 0, 0], "int32").reshape(5, 1)

for smooth in (True, False):
    add(
        "yolov3_loss" + ("_smooth" if smooth else ""),
        {
            "x": floats(2, 2 * 8, 4, 4),
            "box": CENTERED,
            "label": ints(2, 3, high=3, dtype="int32"),
            "score": floats(2, 3, low=0.2, high=1.0),
        },
        lambda f, x, box, label, score, smooth=smooth: f.layers.yolov3_loss(
            x,
            stopped(box),
            label,
            ANCHORS,
            [1, 3],
            3,
            0.4,
            16,
            gt_score=stopped(score),
            use_label_smooth=smooth,
            scale_x_y=1.0 if smooth else 1.2,
        ),
    )


def stopped(variable):
    variable.stop_gradient = True
    return variable


def ssd(f, location, confidence, box, label, prior, variance):
    for one in (box, prior, variance):
        one.stop_gradient = True
    return f.layers.ssd_loss(location, confidence, box, label, prior, variance)


add(
    "ssd_loss",
    {
        "location": floats(2, 6, 4),
        "confidence": floats(2, 6, 3),
        "box": boxes(3, size=1, seed=7) / 3,
        "label": ints(3, 1, high=2, dtype="int32") + 1,
        "prior": boxes(6, size=1, seed=8) / 3,
        "variance": np.full((6, 4), 0.1, "float32"),
    },
    ssd,
    lod={"box": [[2, 1]], "label": [[2, 1]]},
)
add(
    "multi_box_head",
    {"a": floats(2, 3, 4, 4), "b": floats(2, 3, 2, 2), "image": floats(2, 3, 16, 16)},
    lambda f, a, b, image: f.layers.multi_box_head(
        [a, b],
        stopped(image),
        16,
        3,
        [[2.0], [2.0, 3.0]],
        min_sizes=[4.0, 8.0],
        max_sizes=[8.0, 12.0],
        kernel_size=3,
        pad=1,
    ),
    whole=True,
    forward_only=True,
)


def rpn(f, predicted, logits, anchors, variances, true, crowd, info):
    return f.layers.rpn_target_assign(
        predicted,
        logits,
        anchors,
        variances,
        true,
        crowd,
        info,
        rpn_batch_size_per_im=8,
        rpn_straddle_thresh=2.0,
        rpn_positive_overlap=0.5,
        use_random=False,
    )


add(
    "rpn_target_assign",
    {
        "predicted": floats(2, 24, 4),
        "logits": floats(2, 24, 1),
        "anchors": ANCHOR_BOXES,
        "variances": np.ones((24, 4), "float32"),
        "true": TRUE_BOXES,
        "crowd": NOT_CROWD,
        "info": INFO,
    },
    rpn,
    lod={"true": [[3, 2]], "crowd": [[3, 2]]},
    forward_only=True,
    whole=True,
)
add(
    "retinanet_target_assign",
    {
        "predicted": floats(2, 24, 4),
        "logits": floats(2, 24, 3),
        "anchors": ANCHOR_BOXES,
        "variances": np.ones((24, 4), "float32"),
        "true": TRUE_BOXES,
        "labels": ints(5, 1, high=3, dtype="int32") + 1,
        "crowd": NOT_CROWD,
        "info": INFO,
    },
    lambda f, *given: f.layers.retinanet_target_assign(*given, 3, 0.5, 0.4),
    lod={"true": [[3, 2]], "labels": [[3, 2]], "crowd": [[3, 2]]},
    forward_only=True,
    whole=True,
)
for cascade in (False, True):
    add(
        "generate_proposal_labels" + ("_cascade" if cascade else ""),
        {
            "rois": ANCHOR_BOXES,
            "classes": ints(5, 1, high=3, dtype="int32") + 1,
            "crowd": NOT_CROWD,
            "true": TRUE_BOXES,
            "info": INFO,
        },
        lambda f, *given, cascade=cascade: f.layers.generate_proposal_labels(
            *given,
            batch_size_per_im=16 if cascade else 8,
            fg_thresh=0.5,
            bg_thresh_hi=0.4,
            class_nums=4,
            use_random=False,
            is_cascade_rcnn=cascade,
        ),
        lod={
            "rois": [[14, 10]],
            "classes": [[3, 2]],
            "crowd": [[3, 2]],
            "true": [[3, 2]],
        },
        forward_only=True,
        whole=True,
    )
add(
    "prroi_pool",
    {"x": floats(2, 3, 8, 8), "rois": boxes(3, size=10)},
    lambda f, x, rois: f.layers.prroi_pool(x, rois, 0.6, 2, 3),
    lod={"rois": [[2, 1]]},
)
for modulated in (True, False):
    add(
        "deformable_conv" + ("" if modulated else "_v1"),
        {
            "x": floats(2, 4, 6, 7),
            "offset": floats(2, 2 * 2 * 9, 3, 4, low=-2.0, high=2.0, seed=4),
            "mask": floats(2, 2 * 9, 3, 4, low=0.0, seed=5),
        },
        lambda f, x, offset, mask, modulated=modulated: f.layers.deformable_conv(
            x,
            offset,
            mask if modulated else stopped(mask),
            4,
            3,
            2,
            1,
            1,
            2,
            2,
            1,
            modulated=modulated,
        ),
        forward_only=not modulated,
        whole=True,
    )
add(
    "deformable_roi_pooling",
    {"x": floats(2, 8, 8, 8), "rois": boxes(3, size=10), "trans": floats(3, 2, 2, 2)},
    lambda f, x, rois, trans: f.layers.deformable_roi_pooling(
        x, stopped(rois), trans, False, 0.5, [1, 1], 2, 3, [2, 2], 3, 0.1
    ),
    lod={"rois": [[2, 1]]},
)
add(
    "roi_perspective_transform",
    {
        "x": floats(2, 3, 10, 10),
        "rois": np.array(
            [[1, 1, 8, 2, 7, 7, 2, 8], [0, 3, 6, 0, 9, 5, 3, 9], [2, 2, 12, 2, 12, 6, 2, 6]],
            "float32",
        ),
    },
    lambda f, x, rois: f.layers.roi_perspective_transform(x, stopped(rois), 5, 6, 0.9),
    lod={"rois": [[1, 2]]},
    forward_only=True,
)
