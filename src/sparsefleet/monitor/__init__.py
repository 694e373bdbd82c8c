"""Metrics of a job, and what shows them: Prometheus, dashboard, terminal, diagnosis."""

from sparsefleet.monitor.bottleneck import Bottleneck, find_bottleneck
from sparsefleet.monitor.endpoint_file import serve_metrics, serve_metrics_if_asked
from sparsefleet.monitor.exposition import expose, parse
from sparsefleet.monitor.lookup_counts import LOOKUPS
from sparsefleet.monitor.registry import PROCESS, Registry
from sparsefleet.monitor.series import CATALOGUE, Sample, Series, histogram_samples, sample
from sparsefleet.monitor.server_series import server_samples

__all__ = [
    "Bottleneck",
    "CATALOGUE",
    "LOOKUPS",
    "PROCESS",
    "Registry",
    "Sample",
    "Series",
    "expose",
    "find_bottleneck",
    "histogram_samples",
    "parse",
    "sample",
    "serve_metrics",
    "serve_metrics_if_asked",
    "server_samples",
]
