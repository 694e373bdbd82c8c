"""RMSE, Recall@K and NDCG against plain formulas, and merged in any order."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sparsefleet.errors import ConfigError
from sparsefleet.metrics import AUC, NDCG, RMSE, Metric, RecallAtK

RNG = np.random.default_rng(7)
SCORES = RNG.normal(size=400).round(2)
LABELS = (RNG.random(400) < 0.2).astype(np.int64)
GROUPS = RNG.integers(0, 40, 400)


def by_hand(k: int) -> tuple[float, float]:
    """Recall@k and NDCG@k."""
    recalls, gains = [], []
    for group in np.unique(GROUPS):
        mine = group == GROUPS
        ranked = [label for _, label in sorted(zip(-SCORES[mine], LABELS[mine], strict=True))]
        positives = sum(ranked)
        if positives:
            recalls.append(sum(ranked[:k]) / positives)
            gained = sum(label / math.log2(rank + 2) for rank, label in enumerate(ranked[:k]))
            gains.append(gained / sum(1 / math.log2(r + 2) for r in range(min(k, positives))))
    return float(np.mean(recalls)), float(np.mean(gains))


@pytest.mark.parametrize("k", [1, 3, 100])
def test_ranking_follows_the_formula_whatever_the_parts(k: int) -> None:
    for metric, wanted in zip((RecallAtK(k), NDCG(k)), by_hand(k), strict=True):
        whole, parts = metric.empty_copy(), metric.empty_copy()
        whole.update(SCORES, LABELS, groups=GROUPS)
        for part in np.array_split(RNG.permutation(400), 7):
            one = metric.empty_copy()
            one.update(SCORES[part], LABELS[part], groups=GROUPS[part])
            parts.merge_state(one.state())
        assert whole.compute() == pytest.approx(wanted, abs=1e-12)
        assert parts.compute() == whole.compute()
        assert repr(Metric.from_state(parts.state())) == repr(metric)


def test_groups_without_positives_are_nan_and_missing_groups_are_refused() -> None:
    recall = RecallAtK()
    recall.update(np.array([1.0, 2.0]), np.array([0, 0]), groups=np.array([1, 1]))
    assert math.isnan(recall.compute())
    with pytest.raises(ConfigError, match="groups are missing"):
        recall.update(np.array([1.0]), np.array([0]))


def test_rmse_takes_ratings_and_merges_exactly() -> None:
    predicted, rated = RNG.uniform(0, 6, 1000), RNG.integers(1, 6, 1000)
    whole, parts = RMSE(), RMSE()
    whole.update(predicted, rated)
    for part in np.array_split(RNG.permutation(1000), 9):
        parts.update(predicted[part].astype(np.float64), rated[part])
    wanted = math.sqrt(np.mean((predicted - rated) ** 2))
    assert whole.compute() == pytest.approx(wanted, abs=1e-9)
    assert parts.compute() == whole.compute()
    assert math.isnan(RMSE().compute())


@pytest.mark.parametrize("bad", [np.array([math.nan]), np.array([1e4])])
def test_rmse_refuses_invalid_values(bad: np.ndarray) -> None:
    rmse = RMSE()
    with pytest.raises(ConfigError):
        rmse.update(bad, np.array([0.0]))
    assert math.isnan(rmse.compute())


def test_metrics_of_probabilities_still_refuse_other_numbers() -> None:
    with pytest.raises(ConfigError, match="apply a sigmoid"):
        AUC().update(np.array([1.5]), np.array([1]))
