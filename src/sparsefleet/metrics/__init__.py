"""Figures of how good predictions are, merged exactly over threads and workers."""

from sparsefleet.metrics.accuracy import Accuracy
from sparsefleet.metrics.auc import AUC, auc_from_counts
from sparsefleet.metrics.calibration import Calibration
from sparsefleet.metrics.gauc import GAUC
from sparsefleet.metrics.log_loss import LogLoss, NormalizedEntropy
from sparsefleet.metrics.metric import Metric
from sparsefleet.metrics.metric_set import MetricSet

__all__ = [
    "AUC",
    "Accuracy",
    "Calibration",
    "GAUC",
    "LogLoss",
    "Metric",
    "MetricSet",
    "NormalizedEntropy",
    "auc_from_counts",
]
