"""The figures of all metrics but AUC, against torch or the plain formula."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from sparsefleet.errors import ConfigError, ShapeError
from sparsefleet.metrics import (
    GAUC,
    Accuracy,
    Calibration,
    LogLoss,
    Metric,
    NormalizedEntropy,
)


def after(metric: Metric, scores: object, labels: object, groups: object = None) -> float:
    metric.update(scores, labels, groups=groups)
    return metric.compute()


def examples(size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    scores = rng.random(size)
    return scores, rng.integers(0, 2, size)


def test_log_loss_equals_torch() -> None:
    scores, labels = examples(3000, seed=1)
    scores[:4], labels[:4] = [0.0, 1.0, 0.0, 1.0], [0, 0, 1, 1]
    expected = torch.nn.functional.binary_cross_entropy(
        torch.from_numpy(scores), torch.from_numpy(labels).double()
    )
    assert after(LogLoss(), scores, labels) == pytest.approx(expected.item(), rel=1e-12)


def test_log_loss_of_a_sure_mistake_equals_torch() -> None:
    assert after(LogLoss(), np.array([0.0, 1.0]), np.array([1, 0])) == 100.0


def test_log_loss_keeps_its_precision_over_many_examples() -> None:
    scores, labels = examples(1_000_000, seed=2)
    terms = -np.log(np.where(labels == 1, scores, 1 - scores))
    assert after(LogLoss(), scores, labels) == pytest.approx(
        math.fsum(terms) / len(terms), abs=1e-13
    )


def test_normalized_entropy_of_the_base_rate_is_one() -> None:
    labels = np.array([1, 0, 0, 0, 0])
    assert after(NormalizedEntropy(), np.full(5, 0.2), labels) == pytest.approx(1.0, rel=1e-12)


def test_normalized_entropy_is_log_loss_over_entropy() -> None:
    scores, labels = examples(500, seed=3)
    rate = labels.mean()
    entropy = -rate * np.log(rate) - (1 - rate) * np.log(1 - rate)
    expected = after(LogLoss(), scores, labels) / entropy
    assert after(NormalizedEntropy(), scores, labels) == pytest.approx(expected, rel=1e-12)


def test_accuracy_predicts_class_one_above_the_threshold_only() -> None:
    scores, labels = np.array([0.2, 0.5, 0.7, 0.9]), np.array([0, 0, 1, 0])
    assert after(Accuracy(), scores, labels) == 0.75
    assert after(Accuracy(threshold=0.8), scores, labels) == 0.5


def test_accuracy_compares_in_the_type_of_the_predictions() -> None:
    scores = np.array([0.3], np.float32)  # as a double it is a little more than 0.3
    assert after(Accuracy(threshold=0.3), scores, np.array([0])) == 1.0
    assert after(Accuracy(threshold=np.float64(0.3)), scores, np.array([0])) == 1.0


def test_accuracy_of_the_likeliest_class() -> None:
    predictions = torch.softmax(torch.randn(200, 5, generator=torch.Generator().manual_seed(0)), 1)
    labels = torch.arange(200) % 5
    expected = (predictions.argmax(dim=1) == labels).double().mean().item()
    assert after(Accuracy(threshold=None), predictions, labels) == expected


def test_accuracy_of_the_likeliest_class_refuses_what_has_no_classes() -> None:
    with pytest.raises(ShapeError, match="C >= 2"):
        Accuracy(threshold=None).update(np.array([0.5]), np.array([1]))
    for label in (3, -1, 0.5, math.nan):
        with pytest.raises(ConfigError, match=r"labels must be whole numbers in 0\.\.2"):
            Accuracy(threshold=None).update(np.full((1, 3), 0.3), np.array([label]))


def test_calibration_ratio_is_mean_prediction_over_mean_label() -> None:
    scores, labels = examples(1000, seed=4)
    assert after(Calibration(), scores, labels) == pytest.approx(
        scores.mean() / labels.mean(), rel=1e-12
    )


@pytest.mark.parametrize("num_buckets", [1, 10, 15])
def test_calibration_error_is_the_mean_gap_of_the_buckets(num_buckets: int) -> None:
    scores, labels = examples(1000, seed=5)
    scores[0] = 1.0
    buckets = np.minimum(np.floor(scores * num_buckets), num_buckets - 1)
    expected = sum(
        abs(scores[buckets == b].mean() - labels[buckets == b].mean()) * (buckets == b).mean()
        for b in range(num_buckets)
    )
    found = after(Calibration("error", num_buckets), scores, labels)
    assert found == pytest.approx(expected, rel=1e-10)


def brute_force_gauc(scores: np.ndarray, labels: np.ndarray, groups: np.ndarray) -> float:
    total = weight = 0.0
    for group in np.unique(groups):
        own, positive = scores[groups == group], labels[groups == group] == 1
        difference = own[positive][:, None] - own[~positive][None, :]
        if difference.size:
            total += len(own) * ((difference > 0) + 0.5 * (difference == 0)).mean()
            weight += len(own)
    return total / weight


@pytest.mark.parametrize("distinct", [3, 50, 100_000])
def test_gauc_is_the_weighted_mean_of_exact_aucs(distinct: int) -> None:
    rng = np.random.default_rng(6)
    groups = rng.integers(-(2**62), 2**62, 60)[rng.integers(0, 60, 1500)]
    scores, labels = rng.integers(0, distinct, 1500) / distinct, rng.integers(0, 4, 1500) == 0
    assert after(GAUC(), scores, labels, groups) == pytest.approx(
        brute_force_gauc(scores, labels, groups), rel=1e-12
    )


def test_gauc_leaves_out_groups_of_one_class() -> None:
    scores, labels = np.array([0.1, 0.2, 0.9, 0.8, 0.3]), np.array([0, 1, 1, 1, 0])
    assert after(GAUC(), scores, labels, np.array([1, 1, 2, 2, 3])) == 1.0


def test_gauc_takes_hashed_groups_as_unsigned_numbers() -> None:
    groups = np.array([2**64 - 1, 2**64 - 1, 5, 5], np.uint64)
    assert after(GAUC(), np.array([0.1, 0.2, 0.4, 0.3]), np.array([0, 1, 0, 1]), groups) == 0.5


def test_gauc_keeps_no_hold_of_the_callers_arrays() -> None:
    gauc, scores = GAUC(), np.array([0.1, 0.9])
    gauc.update(scores, np.array([0, 1]), groups=np.array([1, 1]))
    scores[:] = [0.9, 0.1]
    assert gauc.compute() == 1.0


def test_gauc_grows_past_its_first_room() -> None:
    gauc = GAUC()
    scores, labels = examples(700, seed=7)
    groups = np.arange(700) % 9
    for _ in range(5):
        gauc.update(scores, labels, groups=groups)
    assert gauc.compute() == pytest.approx(brute_force_gauc(scores, labels, groups), rel=1e-12)


@pytest.mark.parametrize(
    "metric",
    [Accuracy(), Calibration(), Calibration("error"), GAUC(), LogLoss(), NormalizedEntropy()],
    ids=repr,
)
def test_no_data_gives_nan_and_reset_goes_back_there(metric: Metric) -> None:
    assert math.isnan(metric.compute())
    empty = metric.state()
    metric.update(np.empty(0), np.empty(0), groups=np.empty(0, np.int64))
    assert metric.state() == empty
    metric.update(np.array([0.2, 0.4]), np.array([0, 1]), groups=np.array([3, 3]))
    assert math.isfinite(metric.compute())
    metric.reset()
    assert metric.state() == empty


@pytest.mark.parametrize("metric", [Calibration(), GAUC(), NormalizedEntropy()], ids=repr)
def test_figures_that_need_a_positive_are_nan_without_one(metric: Metric) -> None:
    assert math.isnan(after(metric, np.array([0.5, 0.7]), np.zeros(2), np.array([1, 1])))


def test_bad_settings_are_refused() -> None:
    for threshold in (1.5, math.nan, True, "half"):
        with pytest.raises(ConfigError, match=r"Accuracy\.threshold"):
            Accuracy(threshold)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"Calibration\.report"):
        Calibration("both")
    with pytest.raises(ConfigError, match=r"Calibration\.num_buckets"):
        Calibration(num_buckets=0)
