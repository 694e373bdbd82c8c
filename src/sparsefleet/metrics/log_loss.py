"""Log loss, and the same relative to knowing only the base rate."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsefleet.metrics import fixed_point
from sparsefleet.metrics.batch import Batch
from sparsefleet.metrics.metric import CountMetric
from sparsefleet.metrics.state_format import Settings

__all__ = ["LogLoss", "NormalizedEntropy"]

# torch's binary_cross_entropy lets no logarithm fall below -100; 1 - p and p stay above this.
_LEAST_CHANCE = math.exp(-100.0)

_EXAMPLES, _POSITIVES, _HIGH, _LOW = range(4)


class LogLoss(CountMetric):
    """Mean binary cross entropy in nats, as torch's `binary_cross_entropy`; nan without data.

    One example counts at most 100, so a sure prediction that is wrong does not make it infinite.

    >>> loss = LogLoss()
    >>> loss.update(np.array([0.25, 0.5]), np.array([1, 0]))
    >>> round(loss.compute(), 6)
    1.039721
    """

    def __init__(self) -> None:
        super().__init__((4,))

    @property
    def settings(self) -> Settings:
        return {}

    def measure(self, batch: Batch) -> NDArray[Any]:
        positive = batch.positive
        scores = batch.scores.astype(np.float64)
        chances = np.where(positive, scores, 1.0 - scores)
        high, low = fixed_point.split(-np.log(np.maximum(chances, _LEAST_CHANCE)))
        return np.array([batch.size, np.count_nonzero(positive), high.sum(), low.sum()], "<i8")

    def compute(self) -> float:
        counts = self._counts
        if counts[_EXAMPLES] == 0:
            return float("nan")
        return fixed_point.join(counts[_HIGH], counts[_LOW]) / int(counts[_EXAMPLES])


class NormalizedEntropy(LogLoss):
    """Log loss over the entropy of the labels' mean; nan until both classes were seen.

    1 is as good as always predicting the base rate, less is better (He et al., "Practical Lessons
    from Predicting Clicks on Ads at Facebook", ADKDD 2014).

    >>> entropy = NormalizedEntropy()
    >>> entropy.update(np.array([0.5, 0.5]), np.array([1, 0]))
    >>> round(entropy.compute(), 6)
    1.0
    """

    def compute(self) -> float:
        rate = int(self._counts[_POSITIVES]) / max(int(self._counts[_EXAMPLES]), 1)
        if rate in (0.0, 1.0):
            return float("nan")
        entropy = -rate * math.log(rate) - (1.0 - rate) * math.log1p(-rate)
        return super().compute() / entropy
