"""Metrics: the catalogue, the text format, and what a process serves."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import sparsefleet
from sparsefleet.engine.worker_metrics import WORKER
from sparsefleet.errors import ConfigError
from sparsefleet.monitor import CATALOGUE, Registry, Sample, expose, parse, sample, server_samples
from sparsefleet.monitor.endpoint_file import (
    Target,
    metrics_route,
    read_targets,
    serve_metrics_if_asked,
    write_atomically,
    write_targets,
)
from sparsefleet.monitor.http_server import HttpServer, Request, Response
from sparsefleet.monitor.reading import Interval, Reading, gathered, quantile, read_all, read_one
from sparsefleet.monitor.registry import process_samples
from sparsefleet.monitor.series import metric_of, reference_page
from sparsefleet.nn import SparseEmbeddingBag
from sparsefleet.store import LocalStore, TableSpec

ROOT = Path(__file__).parents[3]


@pytest.fixture
def serve() -> Iterator[list[HttpServer]]:
    servers: list[HttpServer] = []
    yield servers
    for server in servers:
        server.close()


def get(server: HttpServer, path: str, **headers: str) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection(server.endpoint.host, server.endpoint.port, timeout=60)
    try:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read().decode()
    finally:
        connection.close()


def test_reference_page_is_the_one_of_the_code() -> None:
    page = (ROOT / "docs" / "metrics_reference.md").read_text(encoding="utf-8")
    assert page == reference_page(), (
        "scripts/print_metrics_reference.py > docs/metrics_reference.md"
    )


def test_names_follow_the_conventions_of_prometheus() -> None:
    assert len(CATALOGUE) >= 40
    for series in CATALOGUE.values():
        assert re.fullmatch(r"sparsefleet_[a-z][a-z0-9_]*[a-z0-9]", series.name)
        assert series.name.endswith("_total") == (series.kind == "counter"), series.name
        assert not re.search(r"_(ms|us|mb|kb|percent)\b", series.name)
        assert not {"id", "key", "le"} & set(series.labels)
        assert series.help.endswith(".")


def test_labels_are_those_of_the_catalogue() -> None:
    with pytest.raises(ValueError, match="must have the labels"):
        sample("sparsefleet_table_rows", 1)
    with pytest.raises(ValueError, match="histogram"):
        sample("sparsefleet_server_request_seconds", 1, type="pull")


def test_text_comes_back_as_it_was_written() -> None:
    samples = [
        Sample("sparsefleet_table_rows", (("table", 'a "b"\\\n c'),), 3.0),
        Sample("sparsefleet_table_rows", (("table", "d"),), 0.1),
        Sample("sparsefleet_worker_epoch", (), float("inf")),
    ]
    assert parse(expose(samples)) == samples
    assert parse("garbage line here\n{} 3\na 1x\n") == []


def test_text_is_read_by_the_official_parser() -> None:
    parser = pytest.importorskip(
        "prometheus_client.parser", reason="pip install sparsefleet[serve]"
    )
    store = LocalStore()
    store.define(TableSpec(name="ads", dim=2))
    store.pull("ads", [1, 2, 3])
    text = expose([*process_samples(), *server_samples(store.stats()[0])])
    families = {family.name: family for family in parser.text_string_to_metric_families(text)}
    assert families["sparsefleet_table_rows"].samples[0].value == 3
    assert families["sparsefleet_table_pulled_rows"].type == "counter"


def test_stats_of_a_server_become_metrics_and_histograms() -> None:
    stats = {
        "server.request_seconds.pull.le.0.001": 3.0,
        "server.request_seconds.pull.le.inf": 4.0,
        "server.request_seconds.pull.sum": 0.5,
        "server.bytes_in": 7.0,
        "server.socket_bytes_in": 5.0,
        "server.lane_bytes_in": 2.0,
        "table.a.b.rows": 2.0,
        "something.new": 1.0,
    }
    found = {(each.name, each.labels): each.value for each in server_samples(stats)}
    name = "sparsefleet_server_request_seconds"
    assert found[f"{name}_bucket", (("type", "pull"), ("le", "0.001"))] == 3
    assert found[f"{name}_bucket", (("type", "pull"), ("le", "+Inf"))] == 4
    assert found[f"{name}_count", (("type", "pull"),)] == 4
    assert found["sparsefleet_table_rows", (("table", "a.b"),)] == 2
    received = "sparsefleet_server_received_bytes_total"
    assert found[received, (("transport", "socket"),)] == 5
    assert found[received, (("transport", "shared_memory"),)] == 2
    assert len(found) == 7


def test_a_source_that_raises_does_not_take_the_others_along(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken() -> list[Sample]:
        raise RuntimeError("gone")

    registry = Registry(broken, lambda: [sample("sparsefleet_worker_epoch", 1)])
    registry.collect()
    values = {each.name: each.value for each in registry.collect()}
    assert values == {"sparsefleet_worker_epoch": 1, "sparsefleet_scrape_errors_total": 2}
    assert caplog.text.count("a metrics source failed") == 1


def test_every_series_of_a_process_is_in_the_catalogue() -> None:
    assert {metric_of(each.name) for each in process_samples()} <= set(CATALOGUE)


def test_metrics_are_served_at_their_path_only(serve: list[HttpServer]) -> None:
    registry = Registry(lambda: [sample("sparsefleet_worker_epoch", 4)])
    server = HttpServer("127.0.0.1:0", metrics_route(registry))
    serve.append(server)
    status, headers, text = get(server, "/metrics")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert "sparsefleet_worker_epoch 4\n" in text
    assert get(server, "/other")[0] == 404


def test_an_address_in_use_is_named(serve: list[HttpServer]) -> None:
    serve.append(HttpServer("127.0.0.1:0", {}))
    with pytest.raises(ConfigError, match=f"cannot listen on {serve[0].endpoint}"):
        HttpServer(str(serve[0].endpoint), {})


def test_a_token_is_needed_and_exchanged_for_a_cookie(serve: list[HttpServer]) -> None:
    def show(_: Request) -> Response:
        return Response(b"secret")

    server = HttpServer("127.0.0.1:0", {"/": show}, token="abc")
    serve.append(server)
    assert get(server, "/")[0] == 403
    assert get(server, "/?token=wrong")[0] == 403
    assert get(server, "/", Authorization="Bearer abc")[2] == "secret"
    assert get(server, "/?token=abc")[2] == "secret"
    status, headers, _ = get(server, "/?token=abc", Accept="text/html")
    assert (status, headers["Location"]) == (303, "/")
    cookie = headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert get(server, "/", Cookie=cookie.partition(";")[0])[2] == "secret"
    assert get(server, "/", Cookie='a="; b=(\x7f')[0] == 403


def test_other_users_read_where_to_scrape_and_nothing_else(tmp_path: Path) -> None:
    """Prometheus usually runs as a separate user; dashboard addresses contain a token."""
    write_targets(tmp_path / "worker-0.json", [Target("worker", 0, "127.0.0.1:5")])
    write_atomically(tmp_path / "dashboard.url", "http://127.0.0.1:5/?token=3f")
    assert (tmp_path / "worker-0.json").stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "dashboard.url").stat().st_mode & 0o777 == 0o600


def test_targets_are_read_back_and_other_files_skipped(tmp_path: Path) -> None:
    write_targets(tmp_path / "worker-1.json", [Target("worker", 1, "127.0.0.1:5")])
    (tmp_path / "worker-2.json").write_text("[{")
    (tmp_path / "worker-3.json").write_text('[{"targets": ["no port"], "labels": {}}]')
    assert read_targets(tmp_path) == [Target("worker", 1, "127.0.0.1:5")]
    groups = json.loads((tmp_path / "worker-1.json").read_text())
    assert groups == [{"targets": ["127.0.0.1:5"], "labels": {"role": "worker", "index": "1"}}]


def test_training_does_not_fail_because_its_metrics_cannot_be_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert serve_metrics_if_asked("worker", 0, {"SPARSEFLEET_METRICS": "off"}) is None
    assert serve_metrics_if_asked("worker", 0, {"SPARSEFLEET_METRICS": "nonsense"}) is None
    assert "SPARSEFLEET_METRICS: endpoint 'nonsense' must be HOST:PORT" in caplog.text


def test_readings_of_processes_are_gathered_with_their_places(
    tmp_path: Path, serve: list[HttpServer]
) -> None:
    registry = Registry(lambda: [sample("sparsefleet_worker_epoch", 4)])
    serve.append(HttpServer("127.0.0.1:0", metrics_route(registry)))
    address = str(serve[0].endpoint)
    write_targets(tmp_path / "worker-1.json", [Target("worker", 1, address)])
    write_targets(tmp_path / "server-0.json", [Target("server", 0, "127.0.0.1:1")])
    answers = read_all(tmp_path, timeout_s=30)
    silent, heard = answers
    assert silent.reading is None
    assert silent.error
    assert heard.reading is not None
    found = {(each.name, each.labels): each.value for each in gathered(answers)}
    place = (("role", "worker"), ("index", "1"))
    assert found["sparsefleet_worker_epoch", place] == 4
    # What another launcher has gathered counts as read from its processes.
    inner = Registry(lambda: [Sample("sparsefleet_worker_epoch", (*place, ("x", "y")), 5.0)])
    serve.append(HttpServer("127.0.0.1:0", metrics_route(inner)))
    other = Target("launcher", 1, str(serve[1].endpoint))
    parts = read_all(tmp_path / "none", timeout_s=30, others=[other])
    assert [part.target.role for part in parts] == ["launcher", "worker"]
    again = [each for each in gathered(parts) if each.name == "sparsefleet_worker_epoch"]
    assert again == [Sample("sparsefleet_worker_epoch", (*place, ("x", "y")), 5.0)]


def test_an_address_without_metrics_is_an_answer_not_an_error(serve: list[HttpServer]) -> None:
    serve.append(HttpServer("127.0.0.1:0", {}))
    answer = read_one(Target("server", 0, str(serve[0].endpoint)), 30)
    assert answer.reading is None
    assert answer.error == "status 404"


def test_a_restarted_process_counts_from_zero() -> None:
    before = Reading([Sample("a", (), 100.0)], 0.0)
    after = Reading([Sample("a", (), 10.0)], 2.0)
    assert Interval(before, after).rate("a") == 5
    assert Interval(None, after).grown("a") == 0


def test_quantile_of_nothing_is_none() -> None:
    assert quantile({}, 0.5) is None
    assert quantile({1.0: 0.0, float("inf"): 0.0}, 0.5) is None
    assert quantile({1.0: 0.0, float("inf"): 4.0}, 0.5) == 1.0


def test_a_training_reports_what_it_has_done() -> None:
    table = "only_in_this_test"  # the ratio of hot keys covers the whole process
    model = nn.Sequential(SparseEmbeddingBag(table, 4), nn.Linear(4, 1), nn.Flatten(0))
    batch = (torch.tensor([[1, 2], [3, 3]]), torch.tensor([1.0, 0.0]))
    trainer = sparsefleet.Trainer(
        model,
        nn.BCEWithLogitsLoss(),
        torch.optim.Adagrad(model.parameters(), lr=0.1),
        config=sparsefleet.TrainerConfig(quiet=True),
    )
    before = Reading(WORKER.samples())  # from earlier tests in this process
    with trainer:
        trainer.fit([batch] * 20, epochs=2, validation=[batch])
        reading = Reading(WORKER.samples())
    grown = Interval(before, reading)
    assert grown.grown("sparsefleet_worker_examples_total") == 80
    assert grown.grown("sparsefleet_worker_steps_total") == 40
    assert reading.get("sparsefleet_worker_epoch") == 2
    assert reading.get("sparsefleet_validation_metric", metric="auc") == 1.0
    assert reading.get("sparsefleet_table_rows", table=table) == 3
    assert 0 < grown.grown("sparsefleet_worker_loss_total") / 80 < 0.8
    assert reading.by("sparsefleet_worker_activity_seconds_total", "activity")["compute"] > 0
    assert reading.get("sparsefleet_table_gradient_samples_total", table=table) > 0
    lookups = reading.get("sparsefleet_worker_lookups_total", table=table)
    assert reading.get("sparsefleet_worker_unique_lookups_total", table=table) < lookups
    assert reading.get("sparsefleet_worker_hot_key_ratio", table=table) == 0.5
    assert {metric_of(each.name) for each in reading.samples()} <= set(CATALOGUE)


def test_metrics_by_group_and_calibration_are_served_while_it_trains() -> None:
    model = nn.Sequential(SparseEmbeddingBag("ads", 4), nn.Linear(4, 1), nn.Flatten(0))
    seen: list[dict[str, float]] = []

    def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for number in range(20):
            if number == 19:
                seen.append(Reading(WORKER.samples()).by("sparsefleet_worker_metric", "metric"))
            yield torch.tensor([[1, 2], [3, 3], [1, 3], [2, 3]]), torch.tensor([1.0, 0, 1, 0])

    with sparsefleet.Trainer(
        model,
        nn.BCEWithLogitsLoss(),
        torch.optim.Adagrad(model.parameters(), lr=0.1),
        metrics=["auc", "gauc", "normalized_entropy", "calibration"],
        config=sparsefleet.TrainerConfig(quiet=True, groups=lambda ids: ids[:, 1] * 0),
    ) as trainer:
        trainer.fit(batches)
    assert set(seen[0]) >= {"loss", "auc", "gauc", "normalized_entropy", "calibration"}
