"""Area under the curve from counts in buckets of the score, as Fluid's `auc` has it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsefleet.errors import ConfigError, ShapeError
from sparsefleet.field_checks import require, require_int
from sparsefleet.metrics.batch import Batch
from sparsefleet.metrics.metric import CountMetric
from sparsefleet.metrics.state_format import Settings

__all__ = ["AUC", "auc_from_counts"]

_CURVES = ("ROC", "PR")


class AUC(CountMetric):
    """Area under the ROC or the precision-recall curve; nan until both classes were seen.

    A score p counts in bucket floor(p * num_thresholds), so scores of one bucket are ties; the
    product is taken in the type of the predictions, as Fluid does. Memory: 16 bytes a bucket.

    >>> auc = AUC()
    >>> auc.update(np.array([0.1, 0.4, 0.35, 0.8]), np.array([0, 0, 1, 1]))
    >>> auc.compute()
    0.75
    """

    def __init__(self, num_thresholds: int = 2**12 - 1, curve: str = "ROC") -> None:
        self.num_thresholds = num_thresholds
        self.curve = curve
        require_int(self, "num_thresholds", 1, 2**24)  # whole numbers a float32 can tell apart
        require(curve in _CURVES, self, "curve", "'ROC' or 'PR'")
        super().__init__((2, num_thresholds + 1))

    @property
    def settings(self) -> Settings:
        return {"num_thresholds": self.num_thresholds, "curve": self.curve}

    @property
    def negatives(self) -> NDArray[np.int64]:
        """How many examples of label 0 each bucket has, int64[num_thresholds + 1]; a copy."""
        return np.copy(self._counts[0])

    @property
    def positives(self) -> NDArray[np.int64]:
        """As `negatives`, of label 1."""
        return np.copy(self._counts[1])

    def measure(self, batch: Batch) -> NDArray[Any]:
        num_buckets = self.num_thresholds + 1
        cells = (batch.scores * self.num_thresholds).astype(np.int64)
        cells += batch.positive * num_buckets
        return np.bincount(cells, minlength=2 * num_buckets).reshape(2, num_buckets)

    def compute(self) -> float:
        return auc_from_counts(self._counts[1], self._counts[0], self.curve)


def auc_from_counts(positives: Any, negatives: Any, curve: str = "ROC") -> float:
    """The area from the counts of both classes in each bucket, lowest score first; int64[buckets].

    The buckets are walked from high to low. ROC: trapezoids over (false positives, true
    positives), in exact integers. PR: trapezoids over (recall, precision), from recall 0 at the
    precision of the highest bucket in use. nan if one class is absent.

    >>> auc_from_counts([0, 1, 1], [2, 2, 0])
    0.875
    """
    pos, neg = np.asarray(positives, np.int64), np.asarray(negatives, np.int64)
    if pos.ndim != 1 or pos.shape != neg.shape:
        raise ShapeError(
            "counts of positives and negatives must have one shape [buckets], "
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
    if num_pos * num_neg >= 2**62:  # twice the area would overflow an int64
        pos, neg = pos.astype(object), neg.astype(object)
    higher_positives = np.cumsum(pos) - pos
    twice_the_area = (neg * (2 * higher_positives + pos)).sum()
    return int(twice_the_area) / (2 * num_pos * num_neg)


def _area_under_precision_recall(pos: NDArray[Any], neg: NDArray[Any]) -> float:
    true_positives = np.cumsum(pos)
    precision = true_positives / (true_positives + np.cumsum(neg))
    before = np.concatenate((precision[:1], precision[:-1]))
    return float((pos * (before + precision)).sum() / (2 * true_positives[-1]))
