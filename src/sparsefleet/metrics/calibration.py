"""Metrics of how well predicted probabilities match observed frequencies."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsefleet.errors import ConfigError, ShapeError
from sparsefleet.field_checks import is_number, require, require_int
from sparsefleet.metrics import metric as fixed_point
from sparsefleet.metrics.metric import Batch, CountMetric, Settings

__all__ = ["Accuracy", "Calibration", "LogLoss", "NormalizedEntropy", "RMSE"]


class Accuracy(CountMetric):
    """The fraction of correct predictions; nan without data.

    threshold: probabilities above it predict class 1. If None, the class with the highest
        probability is predicted (the first one in a tie), predictions are [B, C] with C >= 2, and
        labels are integers in 0..C-1.

    >>> accuracy = Accuracy(threshold=0.3)
    >>> accuracy.update(np.array([0.2, 0.4, 0.9]), np.array([0, 0, 1]))
    >>> round(accuracy.compute(), 6)
    0.666667
    >>> best_of_three = Accuracy(threshold=None)
    >>> best_of_three.update(np.array([[0.1, 0.2, 0.7], [0.5, 0.4, 0.1]]), np.array([2, 1]))
    >>> best_of_three.compute()
    0.5
    """

    def __init__(self, threshold: float | None = 0.5) -> None:
        self.threshold = threshold
        holds = threshold is None or (is_number(threshold) and 0 <= threshold <= 1)
        require(holds, self, "threshold", "a number in 0..1, or None for the most likely class")
        if threshold is not None:
            self.threshold = float(threshold)  # a NumPy scalar would promote float32 predictions
        super().__init__((2,))

    @property
    def settings(self) -> Settings:
        return {"threshold": self.threshold}

    def measure(self, batch: Batch) -> NDArray[Any]:
        return np.array([self._num_right(batch), batch.size], "<i8")

    def _num_right(self, batch: Batch) -> int:
        if self.threshold is not None:
            return int(np.count_nonzero((batch.scores > self.threshold) == batch.positive))
        if batch.predictions.ndim != 2:
            raise ShapeError(
                f"{self!r} needs predictions of shape [B, C] with C >= 2, "
                f"got {list(batch.predictions.shape)}"
            )
        labels = batch.classes(batch.predictions.shape[1])
        return int(np.count_nonzero(batch.predictions.argmax(axis=1) == labels))

    def compute(self) -> float:
        right, total = self._counts.tolist()
        return right / total if total else float("nan")


_MOST_ERROR = 512.0  # its square still fits the fixed-point sums, for 10**8 examples


class RMSE(CountMetric):
    """The root mean squared difference between predictions and labels; nan without data.

    Predictions and labels may be any numbers that differ by at most 512; scale larger values down.

    >>> rmse = RMSE()
    >>> rmse.update(np.array([3.5, 4.0]), np.array([4.0, 4.0]))
    >>> round(rmse.compute(), 6)
    0.353553
    """

    def __init__(self) -> None:
        super().__init__((3,))

    @property
    def settings(self) -> Settings:
        return {}

    def measure(self, batch: Batch) -> NDArray[Any]:
        errors = batch.values.astype(np.float64) - batch.targets
        if errors.size and np.abs(errors).max() > _MOST_ERROR:
            raise ConfigError(
                f"RMSE: a prediction is off by {np.abs(errors).max():g}, but the maximum is "
                f"{_MOST_ERROR:g}: divide predictions and labels by a constant"
            )
        high, low = fixed_point.split(errors * errors)
        return np.array([batch.size, high.sum(), low.sum()], "<i8")

    def compute(self) -> float:
        size, high, low = self._counts.tolist()
        return math.sqrt(fixed_point.join(high, low) / size) if size else float("nan")


# torch's binary_cross_entropy clamps logarithms at -100; p and 1 - p are clamped to at least this.
_LEAST_CHANCE = math.exp(-100.0)

_EXAMPLES, _POSITIVES, _HIGH, _LOW = range(4)


class LogLoss(CountMetric):
    """The mean binary cross entropy in nats; nan without data.

    Like torch's `binary_cross_entropy`, it caps the loss of one example at 100, so a confident
    wrong prediction does not make the mean infinite.

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
    """Log loss divided by the entropy of the label mean; nan until both classes have been seen.

    A model that always predicts the base rate scores 1; lower is better (He et al., "Practical
    Lessons from Predicting Clicks on Ads at Facebook", ADKDD 2014).

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


class Calibration(CountMetric):
    """The mean prediction divided by the mean label, or the expected calibration error.

    A ratio above 1 means that the model overestimates. Without data, both are nan; the ratio is
    also nan if no label is 1.

    report: the value that `compute` returns, "ratio" or "error"; to get both, put two metrics into
        a `MetricSet`.
    num_buckets: number of equal intervals of 0..1 used for the error; 15 as in torchmetrics.

    >>> calibration = Calibration()
    >>> calibration.update(np.array([0.5, 0.5, 0.25, 0.25]), np.array([1, 0, 0, 0]))
    >>> calibration.compute(), calibration.expected_error()
    (1.5, 0.125)
    """

    def __init__(self, report: str = "ratio", num_buckets: int = 15) -> None:
        self.report = report
        self.num_buckets = num_buckets
        require(report in ("ratio", "error"), self, "report", "'ratio' or 'error'")
        require_int(self, "num_buckets", 1, 2**20)
        super().__init__((4, num_buckets))

    @property
    def settings(self) -> Settings:
        return {"report": self.report, "num_buckets": self.num_buckets}

    def measure(self, batch: Batch) -> NDArray[Any]:
        scores = batch.scores.astype(np.float64)
        buckets = np.minimum((scores * self.num_buckets).astype(np.int64), self.num_buckets - 1)
        high, low = fixed_point.split(scores)
        part = np.empty(self._counts.shape, "<i8")
        part[_EXAMPLES] = np.bincount(buckets, minlength=self.num_buckets)
        # Weighted counts are floats, but integers below 2**53 here, so they are exact.
        for row, weights in ((_POSITIVES, batch.positive), (_HIGH, high), (_LOW, low)):
            part[row] = np.bincount(buckets, weights, self.num_buckets)
        return part

    def compute(self) -> float:
        return self.ratio() if self.report == "ratio" else self.expected_error()

    def ratio(self) -> float:
        """Return mean prediction / mean label; 1 is perfectly calibrated on average."""
        _, positives, high, low = self._counts.sum(axis=1)
        return fixed_point.join(high, low) / int(positives) if positives else float("nan")

    def expected_error(self) -> float:
        """Return |mean prediction - mean label| per bucket, averaged over all examples."""
        num_examples = int(self._counts[_EXAMPLES].sum())
        if num_examples == 0:
            return float("nan")
        gaps = 0.0
        for _, positives, high, low in self._counts[:, self._counts[_EXAMPLES] > 0].T.tolist():
            gaps += abs(fixed_point.join(high, low) - positives)
        return gaps / num_examples
