"""Share of examples whose class was predicted rightly."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsefleet.errors import ShapeError
from sparsefleet.field_checks import is_number, require
from sparsefleet.metrics.batch import Batch
from sparsefleet.metrics.metric import CountMetric
from sparsefleet.metrics.state_format import Settings

__all__ = ["Accuracy"]


class Accuracy(CountMetric):
    """Share of examples that were predicted rightly; nan without data.

    threshold: class 1 is predicted where the probability is greater than this. None: the class
        with the greatest probability, the first of equals; predictions are then [B, C] with C >= 2
        and labels whole numbers in 0..C-1.

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
        require(holds, self, "threshold", "a number in 0..1, or None for the likeliest class")
        if threshold is not None:
            self.threshold = float(threshold)  # a NumPy scalar would widen float32 predictions
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
