"""Pushes metrics to an OpenTelemetry collector with OTLP over HTTP; requires the `otel` extra.

Metrics are still read on request: a thread in this module requests them, and OpenTelemetry's own
exporter encodes and sends them.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from sparsefleet.errors import ConfigError
from sparsefleet.monitor.series import CATALOGUE, Sample, metric_of

__all__ = ["OtlpPusher", "check_otlp_url"]

_log = logging.getLogger("sparsefleet.monitor")
_PATH = "/v1/metrics"
_INTERVAL_MS = 10_000.0
_CLOSE_S = 5.0  # for the last push
Labels = tuple[tuple[str, str], ...]


def check_otlp_url(url: str) -> str:
    """Return the push URL for a collector's address; the path defaults to the standard path.

    >>> check_otlp_url("http://127.0.0.1:4318")
    'http://127.0.0.1:4318/v1/metrics'
    """
    parts = urlsplit(url)
    if parts.username is not None or parts.password is not None:  # not repeated in the error
        raise ConfigError(
            f"the address of the OpenTelemetry collector at {parts.hostname} contains a user or "
            "password, which other users can read; set OTEL_EXPORTER_OTLP_HEADERS instead, for "
            "example to 'Authorization=Basic ...'"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(
            f"the address of an OpenTelemetry collector must be http://HOST:PORT or https://..., "
            f"got {url!r}; collectors usually listen at http://127.0.0.1:4318"
        )
    return urlunsplit(parts._replace(path=_PATH)) if parts.path in ("", "/") else url


class OtlpPusher:
    """Pushes the metrics from `collect` every `interval_s` seconds, and once more at the end.

    interval_s: defaults to OTEL_METRIC_EXPORT_INTERVAL, in milliseconds, or 10 s. OpenTelemetry's
    OTEL_EXPORTER_OTLP_* variables set headers, certificates and timeouts. If a collector is down,
    the exporter logs a message, and the job continues.
    """

    def __init__(
        self, url: str, collect: Callable[[], Iterable[Sample]], *, interval_s: float | None = None
    ) -> None:
        url = check_otlp_url(url)
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        except ImportError as error:
            raise ConfigError(
                f"pushing metrics to {url} requires the opentelemetry packages; run "
                "`pip install sparsefleet[otel]`"
            ) from error
        from opentelemetry.sdk.resources import Resource

        from sparsefleet import __version__  # imported here to avoid a circular import

        self._exporter = OTLPMetricExporter(endpoint=url)
        # Start the thread now, since none can be started while the interpreter shuts down.
        names = {"service.name": "sparsefleet", "service.version": __version__}
        self._resource = Resource.create(names)
        self._collect = collect
        self._interval_s = _interval_s() if interval_s is None else interval_s
        self._began = time.time_ns()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sparsefleet-otlp", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Push the metrics once more, and stop."""
        self._ended.set()
        self._thread.join(_CLOSE_S)
        self._exporter.shutdown()

    def _run(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._ended.wait(self._interval_s)
            try:
                self._exporter.export(metrics_data(self._collect(), self._resource, self._began))
            except Exception:  # a failure to send metrics must not stop a job
                _log.warning("metrics could not be pushed", exc_info=True)


def _interval_s() -> float:
    text = os.environ.get("OTEL_METRIC_EXPORT_INTERVAL", "") or str(_INTERVAL_MS)
    try:
        interval_ms = float(text)
    except ValueError:
        interval_ms = math.nan
    if not 0 < interval_ms < math.inf:
        raise ConfigError(
            f"OTEL_METRIC_EXPORT_INTERVAL must be a number of milliseconds > 0, got {text!r}"
        )
    return interval_ms / 1000


def metrics_data(samples: Iterable[Sample], resource: Any, began_ns: int) -> Any:
    """Return samples as OpenTelemetry's MetricsData: cumulative sums, gauges and histograms.

    began_ns: when counting started, in nanoseconds since 1970.
    """
    from opentelemetry.sdk.metrics.export import Metric, MetricsData, ResourceMetrics, ScopeMetrics
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    by_metric: dict[str, list[Sample]] = {}
    for one in samples:
        by_metric.setdefault(metric_of(one.name), []).append(one)
    metrics = []
    for name, members in by_metric.items():
        series = CATALOGUE.get(name)
        kind = "gauge" if series is None else series.kind
        help_ = "" if series is None else series.help
        data = _data(kind, members, began_ns, time.time_ns())
        metrics.append(Metric(name=name, description=help_, unit="", data=data))
    scope = InstrumentationScope("sparsefleet")
    return MetricsData([ResourceMetrics(resource, [ScopeMetrics(scope, metrics, "")], "")])


def _data(kind: str, members: list[Sample], began_ns: int, now_ns: int) -> Any:
    from opentelemetry.sdk.metrics.export import (
        AggregationTemporality,
        Gauge,
        Histogram,
        NumberDataPoint,
        Sum,
    )

    cumulative = AggregationTemporality.CUMULATIVE
    if kind == "histogram":
        return Histogram(_histogram_points(members, began_ns, now_ns), cumulative)
    points = [
        NumberDataPoint(dict(one.labels), began_ns, now_ns, one.value)
        for one in members
        if not math.isnan(one.value)
    ]
    return Sum(points, cumulative, is_monotonic=True) if kind == "counter" else Gauge(points)


def _histogram_points(members: list[Sample], began_ns: int, now_ns: int) -> list[Any]:
    """Return a point for each set of labels, with non-cumulative bucket counts."""
    from opentelemetry.sdk.metrics.export import HistogramDataPoint

    found: dict[Labels, tuple[dict[float, float], dict[str, float]]] = {}
    for one in members:
        labels = dict(one.labels)
        bound = labels.pop("le", None)
        buckets, totals = found.setdefault(tuple(labels.items()), ({}, {}))
        if bound is not None:
            buckets[float(bound)] = one.value
        else:
            totals[one.name.rpartition("_")[2]] = one.value
    return [
        HistogramDataPoint(
            attributes=dict(labels),
            start_time_unix_nano=began_ns,
            time_unix_nano=now_ns,
            count=int(totals.get("count", 0)),
            sum=totals.get("sum", 0.0),
            bucket_counts=_single(buckets),
            explicit_bounds=[bound for bound in sorted(buckets) if math.isfinite(bound)],
            min=math.nan,
            max=math.nan,
        )
        for labels, (buckets, totals) in found.items()
    ]


def _single(buckets: Mapping[float, float]) -> list[int]:
    """Convert cumulative bucket counts to the count of each bucket.

    >>> _single({1.0: 2.0, 5.0: 3.0, math.inf: 7.0})
    [2, 1, 4]
    """
    counts = [int(buckets[bound]) for bound in sorted(buckets)]
    return [count - before for before, count in zip([0, *counts[:-1]], counts, strict=True)]
