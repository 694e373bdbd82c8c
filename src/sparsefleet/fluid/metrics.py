"""Metrics that a script accumulates over batches from fetched arrays."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from sparsefleet.fluid.paths import known_names
from sparsefleet.metrics import AUC

__getattr__ = known_names(
    __name__, "fluid.metrics", {"DetectionMAP": "sparsefleet.fluid.evaluator"}
)

__all__ = [
    "Accuracy",
    "Auc",
    "ChunkEvaluator",
    "CompositeMetric",
    "EditDistance",
    "MetricBase",
    "Precision",
    "Recall",
    "WeightedAverage",
]


class MetricBase(ABC):
    """A metric with `update`, `eval` and `reset`. Its public attributes are its state."""

    def __init__(self, name: str | None) -> None:
        self._name = type(self).__name__ if name is None else str(name)

    def __str__(self) -> str:
        return self._name

    def _states(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def reset(self) -> None:
        """Reset to the initial state."""
        for name, value in self._states().items():
            if isinstance(value, (int, float)):
                setattr(self, name, type(value)(0))
            else:
                setattr(self, name, np.zeros_like(value))

    def get_config(self) -> dict[str, Any]:
        """Return a dict with the metric's name and state."""
        return {"name": self._name, "states": self._states()}

    @abstractmethod
    def update(self, *values: Any) -> None:
        """Add the values of a batch to the metric."""

    @abstractmethod
    def eval(self) -> Any:
        """Return the metric's value over all batches so far."""

    def _array(self, what: str, value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            raise ValueError(f"{self._name}: '{what}' must be a NumPy array, got {value!r}")
        return value

    def _number(self, what: str, value: Any) -> float:
        is_one = isinstance(value, np.ndarray) and value.size == 1
        if not is_one and not isinstance(value, (int, float, np.number)):
            raise ValueError(f"{self._name}: '{what}' must be a number, got {value!r}")
        return float(np.asarray(value).reshape(()))


class CompositeMetric(MetricBase):
    """Combines several metrics over the same predictions.

    >>> both = CompositeMetric()
    >>> both.add_metric(Precision())
    >>> both.add_metric(Recall())
    >>> both.update(np.array([0.1, 0.7, 0.8, 0.9]), np.array([1, 1, 0, 1]))
    >>> [round(figure, 3) for figure in both.eval()]
    [0.667, 0.667]
    """

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self._metrics: list[MetricBase] = []

    def add_metric(self, metric: MetricBase) -> None:
        if not isinstance(metric, MetricBase):
            raise ValueError(
                f"{self._name}: a metric must be a fluid.metrics.MetricBase, got {metric!r}"
            )
        self._metrics.append(metric)

    def update(self, preds: Any, labels: Any) -> None:
        for metric in self._metrics:
            metric.update(preds, labels)

    def eval(self) -> list[Any]:
        return [metric.eval() for metric in self._metrics]

    def reset(self) -> None:
        for metric in self._metrics:
            metric.reset()


class _Binary(MetricBase):
    """Base class that compares rounded predictions with labels of 0 and 1."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.tp = 0

    def _rounded(self, preds: Any, labels: Any) -> tuple[Any, Any]:
        predicted = np.rint(self._array("preds", preds)).astype(np.int64).reshape(-1)
        truth = self._array("labels", labels).reshape(-1)
        if predicted.shape != truth.shape:
            raise ValueError(
                f"{self._name}: got {predicted.size} predictions for {truth.size} labels"
            )
        return predicted, truth


class Precision(_Binary):
    """The fraction of predicted positives that are correct.

    >>> metric = Precision()
    >>> metric.update(np.array([0.1, 0.7, 0.8, 0.9]), np.array([0, 1, 0, 1]))
    >>> round(metric.eval(), 3)
    0.667
    """

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.fp = 0

    def update(self, preds: Any, labels: Any) -> None:
        predicted, truth = self._rounded(preds, labels)
        self.tp += int(((predicted == 1) & (truth == 1)).sum())
        self.fp += int(((predicted == 1) & (truth != 1)).sum())

    def eval(self) -> float:
        return self.tp / (self.tp + self.fp) if self.tp + self.fp else 0.0


class Recall(_Binary):
    """The fraction of actual positives that were predicted.

    >>> metric = Recall()
    >>> metric.update(np.array([0.1, 0.7, 0.8, 0.9]), np.array([1, 1, 0, 1]))
    >>> round(metric.eval(), 3)
    0.667
    """

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.fn = 0

    def update(self, preds: Any, labels: Any) -> None:
        predicted, truth = self._rounded(preds, labels)
        self.tp += int(((predicted == 1) & (truth == 1)).sum())
        self.fn += int(((predicted != 1) & (truth == 1)).sum())

    def eval(self) -> float:
        return self.tp / (self.tp + self.fn) if self.tp + self.fn else 0.0


class Accuracy(MetricBase):
    """The mean accuracy over batches, each with its own weight.

    >>> metric = Accuracy()
    >>> metric.update(0.5, weight=2)
    >>> metric.update(np.array([1.0]), weight=2)
    >>> metric.eval()
    0.75
    """

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.value = 0.0
        self.weight = 0.0

    def update(self, value: Any, weight: Any) -> None:
        share, size = self._number("value", value), self._number("weight", weight)
        if size < 0:
            raise ValueError(f"{self._name}: 'weight' must be >= 0, got {weight!r}")
        self.value += share * size
        self.weight += size

    def eval(self) -> float:
        if self.weight == 0:
            raise ValueError(f"{self._name}: no values to average; call update first")
        return self.value / self.weight


class ChunkEvaluator(MetricBase):
    """Precision, recall and F1 of chunks, from the counts of `layers.chunk_eval`.

    >>> metric = ChunkEvaluator()
    >>> metric.update(10, 9, 3)
    >>> [round(figure, 3) for figure in metric.eval()]
    [0.3, 0.333, 0.316]
    """

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.num_infer_chunks = 0
        self.num_label_chunks = 0
        self.num_correct_chunks = 0

    def update(self, num_infer_chunks: Any, num_label_chunks: Any, num_correct_chunks: Any) -> None:
        self.num_infer_chunks += int(self._number("num_infer_chunks", num_infer_chunks))
        self.num_label_chunks += int(self._number("num_label_chunks", num_label_chunks))
        self.num_correct_chunks += int(self._number("num_correct_chunks", num_correct_chunks))

    def eval(self) -> tuple[float, float, float]:
        right = self.num_correct_chunks
        precision = right / self.num_infer_chunks if self.num_infer_chunks else 0.0
        recall = right / self.num_label_chunks if self.num_label_chunks else 0.0
        f1 = 2 * precision * recall / (precision + recall) if right else 0.0
        return precision, recall, f1


class EditDistance(MetricBase):
    """The mean edit distance of sequences, and the fraction of wrong sequences.

    >>> metric = EditDistance("distance")
    >>> metric.update(np.array([[0.0], [2.0]]), 2)
    >>> metric.eval()
    (1.0, 0.5)
    """

    def __init__(self, name: str | None) -> None:
        super().__init__(name)
        self.total_distance = 0.0
        self.seq_num = 0
        self.instance_error = 0

    def update(self, distances: Any, seq_num: Any) -> None:
        found = self._array("distances", distances)
        self.total_distance += float(found.sum())
        self.seq_num += int(self._number("seq_num", seq_num))
        self.instance_error += int((found != 0).sum())

    def eval(self) -> tuple[float, float]:
        if self.seq_num == 0:
            raise ValueError(f"{self._name}: no sequences yet; call update first")
        return self.total_distance / self.seq_num, self.instance_error / self.seq_num


class Auc(MetricBase):
    """The area under the ROC curve, from counts in score buckets, or 0.0 if a class is missing.

    preds: probabilities, with label 1 in the last column; labels: 0 and 1.

    >>> metric = Auc("auc")
    >>> scores = np.array([0.1, 0.4, 0.35, 0.8])
    >>> metric.update(np.stack([1 - scores, scores], 1), np.array([[0], [0], [1], [1]]))
    >>> metric.eval()
    0.75
    """

    def __init__(self, name: str | None, curve: str = "ROC", num_thresholds: int = 4095) -> None:
        super().__init__(name)
        self._make: Callable[[], AUC] = lambda: AUC(num_thresholds, curve)
        self._counts = self._make()

    def _states(self) -> dict[str, Any]:
        return {"stat_pos": self._counts.positives, "stat_neg": self._counts.negatives}

    def reset(self) -> None:
        self._counts = self._make()

    def update(self, preds: Any, labels: Any) -> None:
        scores, truth = self._array("preds", preds), self._array("labels", labels)
        self._counts.update(scores.reshape(len(scores), -1)[:, -1], truth.reshape(-1))

    def eval(self) -> float:
        area = self._counts.compute()
        return 0.0 if math.isnan(area) else area


class WeightedAverage:
    """The weighted mean of numbers or arrays.

    >>> mean = WeightedAverage()
    >>> mean.add(value=2.0, weight=1)
    >>> mean.add(value=5.0, weight=2)
    >>> float(mean.eval())
    4.0
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Reset to the initial state."""
        self.numerator: Any = None
        self.denominator: float = 0.0

    def add(self, value: Any, weight: float) -> None:
        """Add a value with this weight."""
        for what, given in (("value", value), ("weight", weight)):
            if not isinstance(given, (int, float, np.number, np.ndarray)):
                raise ValueError(f"WeightedAverage: '{what}' must be a number, got {given!r}")
        part = np.asarray(value) * float(np.asarray(weight).reshape(()))
        self.numerator = part if self.numerator is None else self.numerator + part
        self.denominator += float(np.asarray(weight).reshape(()))

    def eval(self) -> Any:
        """Return the weighted mean. Raises ValueError if no values were added."""
        if self.numerator is None or self.denominator == 0:
            raise ValueError("WeightedAverage: no values to average; add values first")
        return self.numerator / self.denominator
