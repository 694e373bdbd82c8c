"""Metrics reach an OpenTelemetry collector with the right types and values."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from tests.support.launch_process import wait_until

pytest.importorskip(
    "opentelemetry.exporter.otlp.proto.http", reason="pip install sparsefleet[otel]"
)

from tests.support.otlp_collector import OtlpCollector, labels_of

import sparsefleet
from sparsefleet.errors import ConfigError
from sparsefleet.monitor import histogram_samples, sample
from sparsefleet.monitor.otlp import OtlpPusher, check_otlp_url

HISTOGRAM = "sparsefleet_server_request_seconds"


@pytest.fixture
def collector() -> Iterator[OtlpCollector]:
    started = OtlpCollector()
    yield started
    started.close()


def test_counters_gauges_and_histograms_arrive(
    collector: OtlpCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=ads")
    samples = [
        sample("sparsefleet_worker_examples_total", 640),
        sample("sparsefleet_table_rows", 7, table="ads"),
        sample("sparsefleet_table_rows", 8, table="users"),
        *histogram_samples(HISTOGRAM, {0.001: 2, 0.01: 5}, 6, 0.5, type="pull"),
    ]
    pusher = OtlpPusher(collector.url, lambda: samples, interval_s=0.05)
    wait_until(lambda: len(collector.requests) >= 2, "two pushes")
    pusher.close()
    assert collector.paths == {"/v1/metrics"}
    assert collector.headers["x-team"] == "ads"
    assert collector.resource()["service.name"] == "sparsefleet"
    assert collector.resource()["service.version"] == sparsefleet.__version__
    found = collector.metrics()
    examples = found["sparsefleet_worker_examples_total"].sum
    assert examples.is_monotonic
    assert examples.aggregation_temporality == 2  # cumulative
    (point,) = examples.data_points
    assert point.as_double == 640
    assert point.start_time_unix_nano < point.time_unix_nano
    rows = found["sparsefleet_table_rows"]
    assert rows.description == "Rows on this server."
    values = {labels_of(each)["table"]: each.as_double for each in rows.gauge.data_points}
    assert values == {"ads": 7, "users": 8}
    (latency,) = found[HISTOGRAM].histogram.data_points
    assert labels_of(latency) == {"type": "pull"}
    assert list(latency.explicit_bounds) == [0.001, 0.01]
    assert list(latency.bucket_counts) == [2, 3, 1]
    assert (latency.count, latency.sum) == (6, 0.5)


def test_the_end_is_pushed(collector: OtlpCollector) -> None:
    pusher = OtlpPusher(
        collector.url, lambda: [sample("sparsefleet_worker_epoch", 3)], interval_s=3600
    )
    pusher.close()
    (point,) = collector.metrics()["sparsefleet_worker_epoch"].gauge.data_points
    assert point.as_double == 3


@pytest.mark.parametrize("url", ["127.0.0.1:4318", "grpc://host:4317", "http://"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"collector must be http://HOST:PORT.*got"):
        check_otlp_url(url)


def test_a_path_is_kept() -> None:
    assert check_otlp_url("https://x/otlp/v1/metrics") == "https://x/otlp/v1/metrics"


def test_an_interval_that_is_none_is_refused(
    collector: OtlpCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "soon")
    with pytest.raises(
        ConfigError, match="OTEL_METRIC_EXPORT_INTERVAL must be a number of milliseconds"
    ):
        OtlpPusher(collector.url, list)


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "opentelemetry.exporter.otlp.proto.http.metric_exporter"
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=r"pip install sparsefleet\[otel\]"):
        OtlpPusher("http://127.0.0.1:1", list)


def test_a_password_in_the_address_is_refused_and_not_shown() -> None:
    with pytest.raises(ConfigError, match="OTEL_EXPORTER_OTLP_HEADERS") as caught:
        check_otlp_url("https://user:secret@collector.example:4318")
    assert "secret" not in str(caught.value)
