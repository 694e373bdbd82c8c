"""Metrics of the service, for Prometheus."""

from __future__ import annotations

import time

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

from sparsefleet.serving.http.admission import Admission
from sparsefleet.serving.http.connections import Connections
from sparsefleet.serving.http.models import Models
from sparsefleet.serving.row_stores import UpdatedRows
from sparsefleet.serving.row_stores.row_store import RowStore

__all__ = ["Telemetry"]

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 16384)


class Telemetry:
    """The metrics of one service, in its own registry. Thread-safe except for `text`."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        self._requests = Counter(
            "sparsefleet_requests", "Requests answered.", ["route", "status"], registry=registry
        )
        self._seconds = Histogram(
            "sparsefleet_request_seconds",
            "Time from a request's headers to the end of its response.",
            ["route"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._batches = Histogram(
            "sparsefleet_batch_examples",
            "Examples per batch.",
            buckets=_SIZES,
            registry=registry,
        )
        self._predictions = Histogram(
            "sparsefleet_batch_seconds", "Time per batch.", buckets=_SECONDS, registry=registry
        )
        self._gauges = {
            name: Gauge(f"sparsefleet_{name}", what, registry=registry)
            for name, what in (
                ("requests_under_way", "Requests being read, waiting or computed."),
                ("bytes_under_way", "Estimated memory of requests in progress."),
                ("connections", "Open connections."),
                ("connections_dropped", "Connections closed to make room for others."),
                ("ready", "1 if /readyz returns 200."),
                ("rows_up", "1 if the rows are available."),
                ("rows_age_seconds", "Age of the newest active update; NaN if there is none."),
                ("update_number", "Number of the newest active update; 0 if there is none."),
                ("update_bytes", "Memory of updated rows."),
                ("updates_failing", "1 if newer updates cannot be read or applied."),
                ("model_switches", "Number of switches to a different version."),
                ("choice_failed", "1 if the chosen version cannot be served."),
            )
        }
        self._model = Gauge(
            "sparsefleet_model_info",
            "1 for the active model.",
            ["name", "version", "engine"],
            registry=registry,
        )

    def answered(self, route: str, status: int, seconds: float) -> None:
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def batch(self, requests: int, examples: int, seconds: float) -> None:
        """Record the size and duration of one batch."""
        del requests
        self._batches.observe(examples)
        self._predictions.observe(seconds)

    def text(
        self, models: Models, admission: Admission, connections: Connections, rows_up: bool
    ) -> bytes:
        """Return all metrics in the Prometheus text format."""
        active = models.active
        fresh = active.rows.freshness() if active else None
        can_predict = active is not None and active.batcher.is_alive and rows_up
        values = {
            "requests_under_way": admission.receiving + admission.requests,
            "bytes_under_way": admission.bytes,
            "connections": len(connections),
            "connections_dropped": connections.dropped,
            "ready": float(can_predict and not admission.is_draining),
            "rows_up": float(rows_up),
            "rows_age_seconds": float("nan") if fresh is None else max(0.0, time.time() - fresh),
            **_of_updates(active.rows if active else None),
            "model_switches": models.switches,
            "choice_failed": float(models.failure is not None),
        }
        for name, value in values.items():
            self._gauges[name].set(value)
        self._model.clear()
        if active is not None:
            self._model.labels(active.name, active.version, active.predictor.engine).set(1)
        found: bytes = generate_latest(self._registry)
        return found


def _of_updates(rows: RowStore | None) -> dict[str, float]:
    updated = rows if isinstance(rows, UpdatedRows) else None
    return {
        "update_number": float(updated.sequence if updated else 0),
        "update_bytes": float(updated.memory_bytes if updated else 0),
        "updates_failing": float(updated is not None and updated.problem is not None),
    }
