"""A job's metrics and what uses them: Prometheus, the dashboard, the terminal and diagnosis."""

from sparsefleet.monitor.endpoint_file import report_metrics_if_asked, serve_metrics
from sparsefleet.monitor.findings import Bottleneck, find_bottleneck
from sparsefleet.monitor.registry import PROCESS, Registry, expose, parse
from sparsefleet.monitor.series import CATALOGUE, Sample, Series, histogram_samples, sample
from sparsefleet.monitor.server_series import LOOKUPS, server_samples

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
    "report_metrics_if_asked",
    "sample",
    "serve_metrics",
    "server_samples",
]
