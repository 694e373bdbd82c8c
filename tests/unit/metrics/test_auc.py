from __future__ import annotations

import math

import numpy as np
import pytest

from sparsefleet.errors import ConfigError, ShapeError
from sparsefleet.metrics import AUC, NDCG, RMSE, Metric, RecallAtK, auc_from_counts


def exact_auc(labels: np.ndarray, scores: np.ndarray) -> float:
    """Return the AUC by ranks; ties count half."""
    _, place, sizes = np.unique(scores, return_inverse=True, return_counts=True)
    mean_ranks = (np.cumsum(sizes) - (sizes - 1) / 2.0)[place]
    num_pos = int(labels.sum())
    rank_sum = mean_ranks[labels == 1].sum() - num_pos * (num_pos + 1) / 2.0
    return float(rank_sum / (num_pos * (len(labels) - num_pos)))


def fluid_auc(positives: np.ndarray, negatives: np.ndarray) -> float:
    """Return the AUC by the specified loop, step by step, in floats."""
    area = true_positives = false_positives = 0.0
    for pos, neg in zip(positives[::-1], negatives[::-1], strict=True):
        area += neg * (true_positives + true_positives + pos) / 2.0
        true_positives += pos
        false_positives += neg
    return area / true_positives / false_positives


def examples(size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    scores = rng.beta(1.5, 4.0, size).astype(np.float32)
    return scores, (rng.random(size) < scores).astype(np.int64)


def auc_of(scores: np.ndarray, labels: np.ndarray, **settings: object) -> float:
    auc = AUC(**settings)  # type: ignore[arg-type]
    auc.update(scores, labels)
    return auc.compute()


def test_reference_values_of_fluid() -> None:
    auc = AUC()
    auc.update(np.array([0.1, 0.4, 0.35, 0.8]), np.array([0, 0, 1, 1]))
    assert auc.compute() == 0.75
    auc.update(np.array([0.9, 0.1]), np.array([0, 1]))
    assert auc.compute() == pytest.approx(0.38889, abs=5e-6)
    auc.update(np.array([0.9, 0.1]), np.array([1, 0]))
    assert auc.compute() == 0.59375


@pytest.mark.parametrize("num_thresholds", [1, 7, 4095])
def test_is_the_exact_auc_of_scores_rounded_to_buckets(num_thresholds: int) -> None:
    scores, labels = examples(5000, seed=1)
    expected = exact_auc(labels, np.floor(scores * num_thresholds))
    assert auc_of(scores, labels, num_thresholds=num_thresholds) == pytest.approx(
        expected, rel=1e-13
    )


def test_default_buckets_are_within_a_thousandth_of_the_exact_auc() -> None:
    scores, labels = examples(20000, seed=2)
    assert auc_of(scores, labels) == pytest.approx(exact_auc(labels, scores), abs=1e-3)


def test_area_is_the_trapezoid_walk_from_high_to_low() -> None:
    rng = np.random.default_rng(3)
    positives, negatives = rng.integers(0, 50, 4096), rng.integers(0, 900, 4096)
    assert auc_from_counts(positives, negatives) == pytest.approx(
        fluid_auc(positives, negatives), rel=1e-12
    )


def test_bucket_is_the_floor_of_the_product_and_one_has_its_own() -> None:
    auc = AUC(num_thresholds=4)
    auc.update(np.array([0.0, 0.24, 0.25, 0.99, 1.0], np.float32), np.array([0, 1, 1, 0, 1]))
    assert auc.positives.tolist() == [1, 1, 0, 0, 1]
    assert auc.negatives.tolist() == [1, 0, 0, 1, 0]


def test_counts_beyond_what_an_int64_product_holds_stay_exact() -> None:
    positives, negatives = np.array([0, 2**40]), np.array([2**40, 2**40])
    assert auc_from_counts(positives, negatives) == 0.75


def test_precision_recall_area_of_distinct_scores() -> None:
    scores, labels = examples(400, seed=4)
    scores = (np.argsort(np.argsort(scores)) + 0.5) / 400
    hits = labels[np.argsort(-scores)]
    precision = np.cumsum(hits) / np.arange(1, 401)
    recall = np.cumsum(hits) / hits.sum()
    steps = np.diff(recall, prepend=0.0)
    expected = (steps * (precision + np.append(precision[0], precision[:-1])) / 2).sum()
    assert auc_of(scores, labels, curve="PR") == pytest.approx(expected, rel=1e-12)


def test_precision_recall_area_is_the_base_rate_when_all_scores_tie() -> None:
    labels = np.array([1, 0, 0, 0])
    assert auc_of(np.full(4, 0.3), labels, curve="PR") == 0.25
    assert auc_of(np.full(4, 0.3), labels, curve="ROC") == 0.5


@pytest.mark.parametrize("curve", ["ROC", "PR"])
@pytest.mark.parametrize("labels", [[], [0, 0], [1, 1]])
def test_is_nan_until_both_classes_were_seen(curve: str, labels: list[int]) -> None:
    assert math.isnan(auc_of(np.full(len(labels), 0.5), np.array(labels), curve=curve))


def test_bad_settings_are_refused() -> None:
    for settings in ({"num_thresholds": 0}, {"num_thresholds": 2.5}, {"curve": "roc"}):
        with pytest.raises(ConfigError, match=next(iter(settings))):
            AUC(**settings)  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match=r"\[2\] and \[3\]"):
        auc_from_counts([1, 2], [1, 2, 3])
    with pytest.raises(ConfigError, match="negative"):
        auc_from_counts([1, -2], [1, 2])
    with pytest.raises(ConfigError, match="curve"):
        auc_from_counts([1], [1], "area")


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
