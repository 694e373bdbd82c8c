"""What the service counts, for Prometheus."""

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

from sparsefleet.serve.http.admission import Admission
from sparsefleet.serve.http.models import Models
from sparsefleet.serve.row_store import RowStore
from sparsefleet.serve.row_stores import UpdatedRows

__all__ = ["Telemetry"]

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 16384)


class Telemetry:
    """The metrics of one service, in a registry of their own. Thread-safe but for `text`."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        self._requests = Counter(
            "sparsefleet_requests", "Answers.", ["route", "status"], registry=registry
        )
        self._seconds = Histogram(
            "sparsefleet_request_seconds",
            "From a request's head to the end of its answer.",
            ["route"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._batches = Histogram(
            "sparsefleet_batch_examples",
            "Examples predicted at once.",
            buckets=_SIZES,
            registry=registry,
        )
        self._predictions = Histogram(
            "sparsefleet_batch_seconds", "Of a batch.", buckets=_SECONDS, registry=registry
        )
        self._gauges = {
            name: Gauge(f"sparsefleet_{name}", what, registry=registry)
            for name, what in (
                ("requests_under_way", "Requests being read, waiting or computed."),
                ("bytes_under_way", "Bytes of their bodies."),
                ("ready", "1 if /readyz says 200."),
                ("rows_up", "1 if rows could be had when this was asked."),
                ("rows_age_seconds", "Age of the newest update in force; NaN without updates."),
                ("update_number", "Number of the newest update in force; 0 without updates."),
                ("update_bytes", "Memory of the rows that updates have changed."),
                ("updates_failing", "1 if newer updates cannot be read or applied."),
                ("model_switches", "How often a version became the active one."),
                ("choice_failed", "1 if the version that is chosen cannot be served."),
            )
        }
        self._model = Gauge(
            "sparsefleet_model_info",
            "1 for the model that is served.",
            ["name", "version", "engine"],
            registry=registry,
        )

    def answered(self, route: str, status: int, seconds: float) -> None:
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def batch(self, requests: int, examples: int, seconds: float) -> None:
        """One batch of that many requests and examples."""
        del requests
        self._batches.observe(examples)
        self._predictions.observe(seconds)

    def text(self, models: Models, admission: Admission, rows_up: bool) -> bytes:
        """All of it, in the text form of Prometheus."""
        active = models.active
        fresh = active.rows.freshness() if active else None
        can_predict = active is not None and active.batcher.is_alive and rows_up
        values = {
            "requests_under_way": admission.requests,
            "bytes_under_way": admission.bytes,
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
