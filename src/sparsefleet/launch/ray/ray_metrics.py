"""Show this process's metrics among Ray's own, which its dashboard and Prometheus read."""

from __future__ import annotations

import threading
from typing import Any

from ray.util import metrics

from sparsefleet.monitor import CATALOGUE, PROCESS
from sparsefleet.monitor.endpoint_file import expect_reader
from sparsefleet.monitor.series import Sample

__all__ = ["mirror_metrics"]

_INTERVAL_S = 5.0


class _Mirror:
    """One Ray gauge per metric, with the labels of its first sample."""

    def __init__(self, role: str, index: int) -> None:
        self._place = {"role": role, "index": str(index)}
        self._gauges: dict[str, Any] = {}

    def show(self, samples: list[Sample]) -> None:
        for sample in samples:
            if sample.name.endswith("_bucket"):
                continue  # Ray has its own histograms, which cannot be set
            labels = {**self._place, **dict(sample.labels)}
            gauge = self._gauges.get(sample.name)
            if gauge is None:
                gauge = metrics.Gauge(sample.name, _help_of(sample.name), tuple(labels))
                self._gauges[sample.name] = gauge
            gauge.set(sample.value, labels)


def mirror_metrics(role: str, index: int) -> None:
    """Copy the metrics of this process to Ray every few seconds, until the process exits."""
    expect_reader()
    mirror = _Mirror(role, index)

    def run() -> None:
        while True:
            mirror.show(PROCESS.collect())
            threading.Event().wait(_INTERVAL_S)

    threading.Thread(target=run, name="ray-metrics", daemon=True).start()


def _help_of(name: str) -> str:
    series = CATALOGUE.get(name)
    return series.help if series is not None else name
