"""Metrics for predictions that can be merged exactly across threads and workers."""

from sparsefleet.metrics.auc import AUC, GAUC, NDCG, RecallAtK, auc_from_counts
from sparsefleet.metrics.calibration import RMSE, Accuracy, Calibration, LogLoss, NormalizedEntropy
from sparsefleet.metrics.metric import CountMetric, Metric
from sparsefleet.metrics.metric_set import MetricSet

__all__ = [
    "AUC",
    "Accuracy",
    "Calibration",
    "CountMetric",
    "GAUC",
    "LogLoss",
    "Metric",
    "MetricSet",
    "NDCG",
    "NormalizedEntropy",
    "RMSE",
    "RecallAtK",
    "auc_from_counts",
]
