"""The input that update accepts and refuses."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from sparsefleet.errors import ConfigError, ShapeError, SparseFleetError
from sparsefleet.metrics import AUC, GAUC, Accuracy, Calibration, LogLoss, Metric, MetricSet

SCORES = [0.125, 0.5, 0.375, 0.75]
LABELS = [0, 0, 1, 1]


def state_after(predictions: Any, labels: Any) -> bytes:
    metrics = MetricSet({"auc": AUC(), "loss": LogLoss(), "gauc": GAUC(), "ratio": Calibration()})
    metrics.update(predictions, labels, groups=np.array([1, 1, 2, 2]))
    return metrics.state()


@pytest.mark.parametrize(
    "predictions",
    [
        SCORES,
        np.array(SCORES),
        np.array(SCORES, np.float16),
        np.array(SCORES, ">f4"),
        np.array(SCORES, np.longdouble),
        np.array(SCORES, np.float32)[:, None],
        np.repeat(np.array(SCORES), 2)[::2],
        np.array([[1 - p, p] for p in SCORES], np.float32),
        torch.tensor(SCORES),
        torch.tensor(SCORES, dtype=torch.float64)[:, None],
        torch.tensor(SCORES, dtype=torch.bfloat16),
        torch.tensor([[1 - p, p] for p in SCORES], requires_grad=True),
    ],
    ids=lambda p: f"{type(p).__name__}-{getattr(p, 'dtype', '')}-{getattr(p, 'shape', '')}",
)
def test_all_forms_of_predictions_count_alike(predictions: Any) -> None:
    assert state_after(predictions, np.array(LABELS)) == state_after(
        np.array(SCORES, np.float32), np.array(LABELS)
    )


@pytest.mark.parametrize(
    "labels",
    [
        LABELS,
        np.array(LABELS, np.float32),
        np.array(LABELS, np.bool_),
        np.array(LABELS, np.uint8)[:, None],
        torch.tensor(LABELS),
        torch.tensor(LABELS, dtype=torch.float64)[:, None],
        torch.tensor(LABELS, dtype=torch.bool),
    ],
    ids=lambda y: f"{type(y).__name__}-{getattr(y, 'dtype', '')}-{getattr(y, 'shape', '')}",
)
def test_all_forms_of_labels_count_alike(labels: Any) -> None:
    assert state_after(np.array(SCORES), labels) == state_after(np.array(SCORES), np.array(LABELS))


BAD_INPUT: dict[str, tuple[Any, Any, type[SparseFleetError], str]] = {
    "nan": ([0.5, math.nan], [0, 1], ConfigError, r"got nan at index 1 \(1 of 2 are wrong\)"),
    "infinity": ([0.5, math.inf], [0, 1], ConfigError, "got inf at index 1"),
    "logits": ([0.5, -3.0], [0, 1], ConfigError, r"got -3.0 at index 1 .*sigmoid"),
    "above one": ([1.5, 0.5], [0, 1], ConfigError, "probabilities in 0..1, got 1.5 at index 0"),
    "nan in softmax": ([[0.5, 0.5], [math.nan, 0.5]], [0, 1], ConfigError, "index 1, 0"),
    "integers": (np.array([0, 1]), [0, 1], ConfigError, "float32 or float64, got int64"),
    "text": (["a", "b"], [0, 1], ConfigError, "float32 or float64"),
    "scalar": (np.array(0.5), [1], ShapeError, r"got \[\]"),
    "three classes": (np.full((2, 3), 0.3), [0, 1], ShapeError, r"got \[2, 3\]"),
    "three dimensions": (np.full((2, 1, 1), 0.3), [0, 1], ShapeError, r"got \[2, 1, 1\]"),
    "no column": (np.empty((2, 0)), [0, 1], ShapeError, r"got \[2, 0\]"),
    "ragged": ([[0.5], [0.5, 0.5]], [0, 1], ShapeError, "do not form an array"),
    "label two": ([0.5, 0.5], [0, 2], ConfigError, "labels must be 0 or 1, got 2 at index 1"),
    "label minus one": ([0.5, 0.5], [-1, 1], ConfigError, "got -1 at index 0"),
    "label nan": ([0.5, 0.5], [math.nan, 1], ConfigError, "got nan at index 0"),
    "soft label": ([0.5, 0.5], [0.25, 1], ConfigError, "got 0.25 at index 0"),
    "text label": ([0.5, 0.5], ["no", "yes"], ConfigError, "labels must be numbers"),
    "one-hot labels": ([0.5, 0.5], np.eye(2), ShapeError, r"labels must have shape"),
    "fewer labels": ([0.5, 0.5], [1], ShapeError, "1 labels for 2 predictions"),
    "more labels": ([0.5, 0.5], [0, 1, 1], ShapeError, "3 labels for 2 predictions"),
    "device": (torch.empty(2, device="meta"), [0, 1], ConfigError, "device 'meta'"),
}


@pytest.mark.parametrize("make", [AUC, Accuracy, Calibration, GAUC, LogLoss])
@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_is_named_and_counts_nothing(make: Callable[[], Metric], name: str) -> None:
    predictions, labels, error, message = BAD_INPUT[name]
    metric = make()
    metric.update(np.array([0.2, 0.8]), np.array([0, 1]), groups=np.array([1, 1]))
    before = metric.state()
    with pytest.raises(error, match=message) as raised:
        metric.update(predictions, labels, groups=np.zeros(len(labels), np.int64)[:2])
    assert isinstance(raised.value, ValueError)
    assert metric.state() == before


def test_bad_groups_are_refused() -> None:
    scores, labels = np.array([0.2, 0.8]), np.array([0, 1])
    with pytest.raises(ConfigError, match="groups are missing"):
        GAUC().update(scores, labels)
    with pytest.raises(ConfigError, match="groups must be integers, got float64"):
        GAUC().update(scores, labels, groups=np.array([1.0, 2.0]))
    with pytest.raises(ShapeError, match="3 groups for 2 predictions"):
        GAUC().update(scores, labels, groups=np.array([1, 2, 3]))


def test_a_set_counts_in_none_of_its_metrics_when_one_refuses() -> None:
    metrics = MetricSet({"auc": AUC(), "gauc": GAUC()})
    before = metrics.state()
    with pytest.raises(ConfigError, match="groups are missing"):
        metrics.update(np.array([0.2, 0.8]), np.array([0, 1]))
    assert metrics.state() == before
