"""Layers for boxes in images, compared with results computed by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparsefleet import fluid

L = fluid.layers


def run(fetch: Any, **feed: Any) -> Any:
    exe = fluid.Executor()
    return exe.run(feed=feed, fetch_list=fetch, return_numpy=False)


def floats(values: Any) -> Any:
    return np.asarray(values, "float32")


BOXES = floats([[0, 0, 2, 2], [1, 1, 3, 3], [10, 10, 12, 12]])


def test_overlaps_are_intersections_over_unions() -> None:
    x = fluid.data("x", [None, 4])
    (found,) = run([L.iou_similarity(x, x)], x=BOXES)
    assert np.allclose(found.numpy()[0], [1.0, 1 / 7, 0.0])


def test_decoded_boxes_are_those_that_were_encoded() -> None:
    prior, variance, box = (fluid.data(name, [None, 4]) for name in ("p", "v", "b"))
    coded = L.box_coder(prior, variance, box)
    back = L.box_coder(prior, variance, coded, code_type="decode_center_size")
    priors = floats([[0, 0, 4, 4], [1, 1, 2, 5]])
    feed = {"p": priors, "v": floats(np.full((2, 4), 0.1)), "b": BOXES}
    (found,) = run([back], **feed)
    assert coded.shape == (-1, -1, 4)
    for column in range(2):
        assert np.allclose(found.numpy()[:, column], BOXES, atol=1e-5)


def test_the_better_of_two_overlapping_boxes_stays() -> None:
    boxes, scores = fluid.data("b", [None, 3, 4]), fluid.data("s", [None, 2, 3])
    out = L.multiclass_nms(boxes, scores, 0.1, 10, 10, nms_threshold=0.1)
    score = floats([[[0.0, 0.0, 0.0], [0.6, 0.9, 0.5]]])
    (found,) = run([out], b=BOXES[None], s=score)
    assert found.lod() == [[0, 2]]
    assert np.allclose(found.numpy()[:, 1], [0.9, 0.5])
    assert np.allclose(found.numpy()[0, 2:], BOXES[1])


def test_priors_lie_around_the_middle_of_each_place() -> None:
    feature, image = fluid.data("f", [None, 1, 2, 2]), fluid.data("i", [None, 3, 8, 8])
    boxes, variances = L.prior_box(feature, image, min_sizes=[4.0], aspect_ratios=[1.0])
    feed = {"f": floats(np.zeros((1, 1, 2, 2))), "i": floats(np.zeros((1, 3, 8, 8)))}
    found, spread = run([boxes, variances], **feed)
    assert boxes.shape == (2, 2, 1, 4)
    assert np.allclose(found.numpy()[0, 1, 0], [0.5, 0.0, 1.0, 0.5])
    assert np.allclose(spread.numpy()[0, 0, 0], [0.1, 0.1, 0.2, 0.2])


@pytest.mark.parametrize("pool", [L.roi_align, L.roi_pool])
def test_a_box_of_equal_values_pools_to_that_value(pool: Any) -> None:
    x, rois = fluid.data("x", [None, 2, 6, 6]), fluid.data("r", [None, 4], lod_level=1)
    out = pool(x, rois, 2, 2)
    boxes = fluid.create_lod_tensor(floats([[0, 0, 3, 3], [1, 1, 4, 4]]), [[1, 1]], None)
    (found,) = run([out], x=floats(np.stack([np.full((2, 6, 6), n) for n in (3, 5)])), r=boxes)
    assert out.shape == (-1, 2, 2, 2)
    assert np.allclose(found.numpy()[0], 3.0)
    assert np.allclose(found.numpy()[1], 5.0)


def test_gradients_pass_through_pooled_boxes() -> None:
    x, rois = fluid.data("x", [None, 1, 4, 4]), fluid.data("r", [None, 4])
    x.stop_gradient = False
    (gradient,) = fluid.gradients(L.reduce_sum(L.roi_align(x, rois, 1, 1, sampling_ratio=2)), x)
    feed = {"x": floats(np.ones((1, 1, 4, 4))), "r": floats([[0, 0, 2, 2]])}
    (found,) = run([gradient], **feed)
    assert found.numpy().sum() == pytest.approx(1.0)


def test_a_head_of_yolo_gives_boxes_and_scores() -> None:
    x, size = fluid.data("x", [None, 14, 2, 2]), fluid.data("s", [None, 2], "int32")
    boxes, scores = L.yolo_box(x, size, [10, 13, 16, 30], 2, 0.0, 32)
    feed = {"x": floats(np.zeros((1, 14, 2, 2))), "s": np.int32([[64, 64]])}
    found, chances = run([boxes, scores], **feed)
    assert boxes.shape == (-1, 8, 4)
    assert np.allclose(found.numpy()[0, 0], [11, 9.5, 21, 22.5])
    assert np.allclose(chances.numpy(), 0.25)
