"""Metrics of how well scores rank examples: areas under curves, from counts in score buckets as in
Fluid's `auc`, and metrics over the items shown to a user.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsefleet.errors import ConfigError, ShapeError
from sparsefleet.field_checks import require, require_int
from sparsefleet.metrics.metric import Batch, CountMetric, Metric, Settings

__all__ = ["AUC", "GAUC", "NDCG", "RecallAtK", "auc_from_counts"]

# Format: one example in the state, 17 bytes.
_SAMPLE = np.dtype([("group", "<i8"), ("score", "<f8"), ("label", "u1")])
_FIRST_CAPACITY = 1024


class GAUC(Metric):
    """The mean of the exact AUC of each group, weighted by the number of examples in the group.

    Groups with labels of only one class have no AUC and are ignored; the result is nan if no group
    is left. `update` needs `groups`. See Zhu et al., "Optimized Cost per Click in Taobao Display
    Advertising", KDD 2017.

    Memory: keeps every example, at 17 bytes plus up to half as much spare capacity; `compute` sorts
    them and temporarily needs about 85 bytes per example.

    >>> gauc = GAUC()
    >>> scores, labels = np.array([0.2, 0.1, 0.9, 0.8, 0.5]), np.array([1, 0, 0, 1, 0])
    >>> gauc.update(scores, labels, groups=np.array([7, 7, 8, 8, 8]))
    >>> gauc.compute()  # AUC 1.0 of group 7 and 0.5 of group 8, as 2 to 3
    0.7
    """

    def __init__(self) -> None:
        self.reset()

    @property
    def settings(self) -> Settings:
        return {}

    def reset(self) -> None:
        self._samples = np.empty(_FIRST_CAPACITY, _SAMPLE)
        self._size = 0

    def measure(self, batch: Batch) -> NDArray[Any]:
        return self.samples_of(batch, batch.scores)

    @staticmethod
    def samples_of(batch: Batch, scores: NDArray[Any]) -> NDArray[Any]:
        """Return group, score and label of each example."""
        part = np.empty(batch.size, _SAMPLE)
        part["group"] = batch.groups
        part["score"] = scores
        part["label"] = batch.positive
        return part

    def add(self, part: NDArray[Any]) -> None:
        size = self._size + len(part)
        if size > len(self._samples):
            grown = np.empty(max(size, len(self._samples) * 3 // 2), _SAMPLE)
            grown[: self._size] = self.contents()
            self._samples = grown
        self._samples[self._size : size] = part
        self._size = size

    def contents(self) -> NDArray[Any]:
        return self._samples[: self._size]

    def parse_samples(self, payload: memoryview) -> NDArray[Any]:
        """Decode samples from bytes; their values are not checked."""
        if len(payload) % _SAMPLE.itemsize != 0:
            raise ConfigError(
                f"metric state: {len(payload)} bytes of {self.kind}, expected a multiple of "
                f"{_SAMPLE.itemsize}, the size of a sample"
            )
        return np.frombuffer(payload, _SAMPLE)

    def parse(self, payload: memoryview) -> NDArray[Any]:
        samples = self.parse_samples(payload)
        scores = samples["score"]
        if not ((scores >= 0) & (scores <= 1) & (samples["label"] <= 1)).all():
            raise ConfigError(
                "metric state: a GAUC sample has a score or label outside 0..1; the bytes are "
                "damaged"
            )
        return samples

    def compute(self) -> float:
        if self._size == 0:
            return float("nan")
        samples = self.contents()
        groups, scores = samples["group"].copy(), samples["score"].copy()
        order = np.lexsort((scores, groups))
        return _weighted_auc(groups[order], scores[order], samples["label"][order])


def _weighted_auc(
    groups: NDArray[np.int64], scores: NDArray[np.float64], labels: NDArray[np.uint8]
) -> float:
    """Return the mean AUC of one or more samples sorted by group, then by score."""
    new_group = np.concatenate(([True], groups[1:] != groups[:-1]))
    new_score = new_group.copy()
    new_score[1:] |= scores[1:] != scores[:-1]

    # Runs of samples with equal group and score; then the runs of each group.
    starts = np.flatnonzero(new_score)
    pos = np.add.reduceat(labels, starts, dtype=np.int64)
    neg = np.diff(starts, append=len(labels)) - pos
    first_runs = np.flatnonzero(new_group[starts])
    runs_per_group = np.diff(first_runs, append=len(starts))

    lower = np.cumsum(neg) - neg
    lower -= np.repeat(lower[first_runs], runs_per_group)
    # A pair in the right order adds 2, and a tie adds 1.
    wins = np.add.reduceat(pos * (2 * lower + neg), first_runs)
    num_pos, num_neg = np.add.reduceat(pos, first_runs), np.add.reduceat(neg, first_runs)

    mixed = (num_pos > 0) & (num_neg > 0)
    if not mixed.any():
        return float("nan")
    num_pos, num_neg = num_pos[mixed], num_neg[mixed]
    weights = num_pos + num_neg
    return float((weights * (wins[mixed] / (2 * num_pos * num_neg))).sum() / weights.sum())


_CURVES = ("ROC", "PR")


class AUC(CountMetric):
    """Area under the ROC or precision-recall curve; nan until both classes have been seen.

    A score p falls into bucket floor(p * num_thresholds); scores in one bucket are ties. As in
    Fluid, the product has the dtype of the predictions. Memory: 16 bytes per bucket. With the
    default, the result is within 1e-4 of the exact area even if all scores are below 0.02; with
    Fluid's default, 4095, it would be off by 0.001.

    >>> auc = AUC()
    >>> auc.update(np.array([0.1, 0.4, 0.35, 0.8]), np.array([0, 0, 1, 1]))
    >>> auc.compute()
    0.75
    """

    def __init__(self, num_thresholds: int = 2**16 - 1, curve: str = "ROC") -> None:
        self.num_thresholds = num_thresholds
        self.curve = curve
        require_int(self, "num_thresholds", 1, 2**24)  # float32 is exact up to here
        require(curve in _CURVES, self, "curve", "'ROC' or 'PR'")
        super().__init__((2, num_thresholds + 1))

    @property
    def settings(self) -> Settings:
        return {"num_thresholds": self.num_thresholds, "curve": self.curve}

    @property
    def negatives(self) -> NDArray[np.int64]:
        """Return the number of examples with label 0 per bucket, int64[num_thresholds + 1]."""
        return np.copy(self._counts[0])

    @property
    def positives(self) -> NDArray[np.int64]:
        """Return the number of examples with label 1 per bucket, int64[num_thresholds + 1]."""
        return np.copy(self._counts[1])

    def measure(self, batch: Batch) -> NDArray[Any]:
        num_buckets = self.num_thresholds + 1
        cells = (batch.scores * self.num_thresholds).astype(np.int64)
        cells += batch.positive * num_buckets
        return np.bincount(cells, minlength=2 * num_buckets).reshape(2, num_buckets)

    def compute(self) -> float:
        return auc_from_counts(self._counts[1], self._counts[0], self.curve)


def auc_from_counts(positives: Any, negatives: Any, curve: str = "ROC") -> float:
    """Return the area from the counts of each class per bucket, int64[buckets], lowest score first.

    Walks the buckets from high to low. ROC: trapezoids over (false positives, true positives), in
    exact integers. PR: trapezoids over (recall, precision), from recall 0 at the precision of the
    highest non-empty bucket. Returns nan if one class is absent.

    >>> auc_from_counts([0, 1, 1], [2, 2, 0])
    0.875
    """
    pos, neg = np.asarray(positives, np.int64), np.asarray(negatives, np.int64)
    if pos.ndim != 1 or pos.shape != neg.shape:
        raise ShapeError(
            "counts of positives and negatives must have the same shape [buckets], "
            f"got {list(pos.shape)} and {list(neg.shape)}"
        )
    if np.any(pos < 0) or np.any(neg < 0):
        raise ConfigError("counts of positives and negatives must not be negative")
    if curve not in _CURVES:
        raise ConfigError(f"curve must be 'ROC' or 'PR', got {curve!r}")
    used = (pos > 0) | (neg > 0)
    pos, neg = pos[used][::-1], neg[used][::-1]
    num_pos, num_neg = int(pos.sum()), int(neg.sum())
    if num_pos == 0 or num_neg == 0:
        return float("nan")
    if curve == "PR":
        return _area_under_precision_recall(pos, neg)
    if num_pos * num_neg >= 2**62:  # twice the area could overflow an int64
        pos, neg = pos.astype(object), neg.astype(object)
    higher_positives = np.cumsum(pos) - pos
    twice_the_area = (neg * (2 * higher_positives + pos)).sum()
    return int(twice_the_area) / (2 * num_pos * num_neg)


def _area_under_precision_recall(pos: NDArray[Any], neg: NDArray[Any]) -> float:
    true_positives = np.cumsum(pos)
    precision = true_positives / (true_positives + np.cumsum(neg))
    before = np.concatenate((precision[:1], precision[:-1]))
    return float((pos * (before + precision)).sum() / (2 * true_positives[-1]))


class _Ranking(GAUC):
    """A score for each group's `k` highest predictions, averaged over groups with a positive label.

    Scores may be any finite numbers. Among equal scores, label 0 ranks first, so ties never help
    and the result does not depend on the order of the examples. Uses as much memory as `GAUC`.
    """

    def __init__(self, k: int = 10) -> None:
        self.k = k
        require_int(self, "k", 1, 2**31)
        super().__init__()

    @property
    def settings(self) -> Settings:
        return {"k": self.k}

    def measure(self, batch: Batch) -> NDArray[Any]:
        return self.samples_of(batch, batch.values)

    def parse(self, payload: memoryview) -> NDArray[Any]:
        samples = self.parse_samples(payload)
        if not (np.isfinite(samples["score"]) & (samples["label"] <= 1)).all():
            raise ConfigError(
                f"metric state: a sample of {self!r} must have a finite score and a label of 0 or "
                "1; the bytes are damaged"
            )
        return samples

    def compute(self) -> float:
        samples = self.contents()
        order = np.lexsort((samples["label"], -samples["score"], samples["group"]))
        groups, labels = samples["group"][order], samples["label"][order].astype(np.float64)
        if not len(groups):
            return float("nan")
        starts = np.flatnonzero(np.concatenate(([True], groups[1:] != groups[:-1])))
        sizes = np.diff(starts, append=len(groups))
        ranks = np.arange(len(groups)) - np.repeat(starts, sizes)  # from 0, within each group
        positives = np.add.reduceat(labels, starts)
        found = np.add.reduceat(np.where(ranks < self.k, labels * self._gain(ranks), 0.0), starts)
        counted = positives > 0
        if not counted.any():
            return float("nan")
        return float((found[counted] / self._best(positives[counted])).mean())

    @abstractmethod
    def _gain(self, ranks: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the weight of a positive at each of these ranks, counted from 0."""

    @abstractmethod
    def _best(self, positives: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the score of a perfect ranking, given the number of positives per group."""


class RecallAtK(_Ranking):
    """The share of a group's positives among its `k` highest scores, averaged over groups.

    `update` needs `groups`; groups without a positive label are skipped, and the result is nan if
    no group is left.

    >>> recall = RecallAtK(k=1)
    >>> scores, labels = np.array([2.5, 1.0, 0.3, 0.4]), np.array([1, 1, 1, 0])
    >>> recall.update(scores, labels, groups=np.array([7, 7, 8, 8]))
    >>> recall.compute()  # one of two in group 7, none in group 8
    0.25
    """

    def _gain(self, ranks: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.ones(len(ranks))

    def _best(self, positives: NDArray[np.float64]) -> NDArray[np.float64]:
        return positives


class NDCG(_Ranking):
    """Normalized discounted cumulative gain of the `k` highest scores, averaged over groups.

    A positive at rank r, from 1, contributes 1 / log2(r + 1) (Jarvelin and Kekalainen 2002).
    `update` needs `groups`; groups without a positive label are skipped, and the result is nan if
    no group is left.

    >>> ndcg = NDCG(k=2)
    >>> ndcg.update(np.array([0.9, 0.8, 0.1]), np.array([0, 1, 0]), groups=np.array([7, 7, 7]))
    >>> round(ndcg.compute(), 4)
    0.6309
    """

    def _gain(self, ranks: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.asarray(1.0 / np.log2(ranks + 2.0))

    def _best(self, positives: NDArray[np.float64]) -> NDArray[np.float64]:
        most = int(min(self.k, positives.max()))
        ideal = np.cumsum(self._gain(np.arange(most)))
        return np.asarray(ideal[np.minimum(positives, most).astype(np.int64) - 1])
