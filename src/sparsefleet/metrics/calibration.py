"""Whether predicted probabilities agree with how often the thing happened."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsefleet.field_checks import require, require_int
from sparsefleet.metrics import fixed_point
from sparsefleet.metrics.batch import Batch
from sparsefleet.metrics.metric import CountMetric
from sparsefleet.metrics.state_format import Settings

__all__ = ["Calibration"]

_EXAMPLES, _POSITIVES, _HIGH, _LOW = range(4)


class Calibration(CountMetric):
    """Mean prediction over mean label, and the expected calibration error.

    A ratio over 1 says that the model promises too much. Both are nan without data, the ratio also
    while no label was 1.

    report: what `compute` gives, "ratio" or "error"; for both, put two into a `MetricSet`.
    num_buckets: equal parts of 0..1 over which the error is taken; 15 as torchmetrics has.

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
        # Weighted counts are floats: whole numbers below 2**53 here, so exact.
        for row, weights in ((_POSITIVES, batch.positive), (_HIGH, high), (_LOW, low)):
            part[row] = np.bincount(buckets, weights, self.num_buckets)
        return part

    def compute(self) -> float:
        return self.ratio() if self.report == "ratio" else self.expected_error()

    def ratio(self) -> float:
        """Mean prediction / mean label; 1 is right on the whole."""
        _, positives, high, low = self._counts.sum(axis=1)
        return fixed_point.join(high, low) / int(positives) if positives else float("nan")

    def expected_error(self) -> float:
        """Mean over examples of |mean prediction - mean label| of their bucket, in 0..1."""
        num_examples = int(self._counts[_EXAMPLES].sum())
        if num_examples == 0:
            return float("nan")
        gaps = 0.0
        for _, positives, high, low in self._counts[:, self._counts[_EXAMPLES] > 0].T.tolist():
            gaps += abs(fixed_point.join(high, low) - positives)
        return gaps / num_examples
