"""Metrics kept in Python; figures are those of 1.8.5."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparsefleet import fluid

M = fluid.metrics
PREDS, LABELS = np.array([0.1, 0.7, 0.8, 0.9]), np.array([1, 1, 0, 1])


def test_accuracy_weighs_batches() -> None:
    metric = M.Accuracy()
    with pytest.raises(ValueError, match="call update first"):
        metric.eval()
    metric.update(0.5, 2)
    metric.update(value=np.array([1.0], "float32"), weight=np.array([2]))
    assert metric.eval() == 0.75
    assert metric.get_config() == {"name": "Accuracy", "states": {"value": 3.0, "weight": 4.0}}
    metric.reset()
    assert metric.get_config()["states"] == {"value": 0.0, "weight": 0.0}


def test_precision_recall_and_both() -> None:
    both = M.CompositeMetric("both")
    precision = M.Precision()
    both.add_metric(precision)
    both.add_metric(M.Recall())
    assert both.eval() == [0.0, 0.0]
    both.update(PREDS, LABELS)
    assert both.eval() == pytest.approx([2 / 3, 2 / 3])
    assert precision.get_config() == {"name": "Precision", "states": {"tp": 2, "fp": 1}}
    both.reset()
    assert both.eval() == [0.0, 0.0]


def test_auc_is_that_of_the_layer() -> None:
    metric = M.Auc("auc")
    assert metric.eval() == 0.0
    scores = np.array([0.1, 0.4, 0.35, 0.8])
    metric.update(np.stack([1 - scores, scores], 1), np.array([[0], [0], [1], [1]]))
    assert metric.eval() == 0.75
    states = metric.get_config()["states"]
    assert states["stat_pos"].sum() == states["stat_neg"].sum() == 2
    metric.reset()
    assert metric.eval() == 0.0


def test_chunks_and_distances() -> None:
    chunks = M.ChunkEvaluator()
    assert chunks.eval() == (0.0, 0.0, 0.0)
    chunks.update(np.array([10]), np.array([9]), np.array([3]))
    assert chunks.eval() == pytest.approx((0.3, 1 / 3, 0.3157894736842105))
    distance = M.EditDistance("distance")
    with pytest.raises(ValueError, match="no sequences"):
        distance.eval()
    distance.update(np.array([[0.0], [2.0], [1.0]]), 3)
    assert distance.eval() == pytest.approx((1.0, 2 / 3))


@pytest.mark.parametrize(
    ("make", "given", "message"),
    [
        (M.Accuracy, ([1], 2), "'value' must be a number"),
        (M.Accuracy, (1, "x"), "'weight' must be a number"),
        (M.Accuracy, (1, -1), "must be >= 0"),
        (M.Precision, ([1], np.array([1])), "'preds' must be a NumPy array"),
        (M.Recall, (np.array([1.0]), np.array([1, 0])), "1 predictions for 2 labels"),
        (lambda: M.Auc("a"), (np.ones((1, 2)), [1]), "'labels' must be a NumPy array"),
    ],
)
def test_values_that_are_not_arrays_or_numbers_are_refused(
    make: Any, given: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make().update(*given)


def test_only_metrics_make_a_composite() -> None:
    with pytest.raises(ValueError, match="MetricBase"):
        M.CompositeMetric().add_metric(3)
    with pytest.raises(AttributeError, match=r"fluid\.metrics\.DetectionMean"):
        _ = M.DetectionMean


def test_weighted_averages() -> None:
    mean = fluid.average.WeightedAverage()
    with pytest.raises(ValueError, match="add values first"):
        mean.eval()
    mean.add(value=2.0, weight=1)
    mean.add(value=np.array([4.0]), weight=2)
    assert mean.eval() == pytest.approx([10 / 3])
    with pytest.raises(ValueError, match="'value' must be a number"):
        mean.add("x", 1)
