"""Answers of the service: predictions, and errors with the right status and name."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from pathlib import Path
from typing import Any

import anyio
import httpx
import numpy as np
import pyarrow as pa
import pytest
from tests.support.served_models import Served, error_of, serving, shop_rows, telling
from tests.unit.serving.export.shop_model import exported_shop
from tests.unit.serving.http.shop_service import WAIT_S, held, on_shop

from sparsefleet.errors import CheckpointError, ConfigError, CorruptFileError
from sparsefleet.serving import FileRows, Predictor, Tables
from sparsefleet.serving.http import ServeConfig, make_app
from sparsefleet.serving.http.examples import ARROW_STREAM, inputs_of_rows

ENGINES = ["torch", "onnx"]


def wanted_of(rows: list[dict[str, Any]]) -> np.ndarray:
    predictor = Predictor(exported_shop()[0])
    found = predictor.predict(inputs_of_rows(rows, predictor.schema))
    assert isinstance(found, np.ndarray)
    return found


@pytest.mark.parametrize("engine", ENGINES)
def test_predictions_are_those_of_the_predictor_by_either_engine(engine: str) -> None:
    rows = shop_rows(20)

    async def test(served: Served) -> None:
        answers = await asyncio.gather(
            *(served.predict([row]) for row in rows), served.predict(rows)
        )
        scores = [answer.json()["predictions"]["chance"] for answer in answers]
        wanted = wanted_of(rows)
        np.testing.assert_allclose(np.concatenate(scores[:-1]), wanted, rtol=0, atol=1e-5)
        np.testing.assert_allclose(scores[-1], wanted, rtol=0, atol=1e-5)
        assert {answer.json()["version"] for answer in answers} == {exported_shop()[1].digest}

    on_shop(test, engine=engine)


def test_all_forms_of_examples_give_the_same_predictions() -> None:
    rows = shop_rows(5)
    lines = "\n".join(map(json.dumps, rows)).encode()
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    for row in rows:
        writer.writerow({name: " ".join(map(str, value)) for name, value in row.items()})
    sink = pa.BufferOutputStream()
    table = pa.Table.from_pylist(rows)
    with pa.ipc.new_stream(sink, table.schema) as arrow:
        arrow.write_table(table)

    async def test(served: Served) -> None:
        wanted = wanted_of(rows)
        for content, kind in (
            (lines, "application/x-ndjson"),
            (text.getvalue().encode(), "text/csv; charset=utf-8"),
        ):
            answer = await served.post(content, kind)
            assert answer.status_code == 200, answer.text
            found = answer.json()["predictions"]["chance"]
            np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)
        answer = await served.post(sink.getvalue().to_pybytes(), ARROW_STREAM)
        assert answer.headers["content-type"] == ARROW_STREAM
        found_table = pa.ipc.open_stream(answer.content).read_all()
        np.testing.assert_allclose(found_table.column("chance"), wanted, rtol=0, atol=1e-5)
        assert found_table.schema.metadata[b"version"].decode() == exported_shop()[1].digest
        as_arrow = await served.predict(rows, headers={"accept": ARROW_STREAM})
        assert pa.ipc.open_stream(as_arrow.content).read_all().equals(found_table)

    on_shop(test)


def test_no_examples_give_no_predictions() -> None:
    async def test(served: Served) -> None:
        assert (await served.predict([])).json()["predictions"] == {"chance": []}

    on_shop(test)


def test_ids_without_a_row_are_listed() -> None:
    rows = shop_rows(2)
    rows[0]["tags"], rows[1]["tags"] = [0, 777], [777, 10**6]
    rows[1]["items"][0] = 5000

    async def test(served: Served) -> None:
        found = (await served.predict(rows, unknown=True)).json()
        listed = {(item["table"], item["key"]): item for item in found["unknown"]}
        assert listed["tags", "777"]["examples"] == [0, 1]
        assert listed["tags", str(10**6)]["examples"] == [1]
        assert ("tags", "0") not in listed  # padding
        assert listed["items", "6000"]["input"] is None  # the model adds 1000
        np.testing.assert_allclose(
            found["predictions"]["chance"], wanted_of(rows), rtol=0, atol=1e-5
        )

    on_shop(test)


def test_of_very_many_ids_without_a_row_the_first_are_listed() -> None:
    [row] = shop_rows(1)
    row["tags"] = list(range(10**6, 10**6 + 300_000))

    async def test(served: Served) -> None:
        listed = (await served.predict([row], unknown=True)).json()["unknown"]
        assert len(listed) == 1000
        assert all(item["examples"] in ([0], None) for item in listed)

    on_shop(test)


def test_scores_and_trace_are_of_one_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, moments = shop_rows(2), []
    tables_for = Predictor.tables_for

    def counted(predictor: Predictor, arrays: Any) -> Tables:
        moments.append(1)
        return tables_for(predictor, arrays)

    async def test(served: Served) -> None:
        monkeypatch.setattr(Predictor, "tables_for", counted)
        assert (await served.predict(rows, trace=True, unknown=True)).status_code == 200
        assert len(moments) == 1

    on_shop(test)


def test_trace_shows_inputs_and_the_rows_that_were_looked_up() -> None:
    rows = shop_rows(12)

    async def test(served: Served) -> None:
        trace = (await served.predict(rows, trace=True)).json()["trace"]
        assert trace["examples"] == 8
        last = trace["layers"][-1]
        np.testing.assert_allclose(last["values"], wanted_of(rows)[:8], rtol=0, atol=1e-6)
        assert trace["inputs"]["items"] == [row["items"] for row in rows[:8]]
        assert sorted(lookup["table"] for lookup in trace["lookups"]) == [
            "items",
            "shops/all",
            "tags",
        ]
        tags = next(lookup for lookup in trace["lookups"] if lookup["table"] == "tags")
        ids = [tag for row in rows[:8] for tag in row["tags"]]
        assert tags["keys"] == list(map(str, ids))
        source = FileRows(exported_shop()[0]).tables()["tags"]
        rows_of_tags = source.look_up(np.array(ids), padding_id=0, unknown="initial")
        np.testing.assert_array_equal(np.array(tags["rows"], np.float32), rows_of_tags)

    on_shop(test)


def test_rows_can_be_looked_at() -> None:
    async def test(served: Served) -> None:
        answer = await served.client.post("/v1/rows", json={"table": "tags", "keys": [3, -1]})
        table = pa.ipc.open_stream(answer.content).read_all()
        assert table.column("key").to_pylist() == [3, 2**64 - 1]
        assert table.column("found").to_pylist() == [True, False]
        wanted = FileRows(exported_shop()[0]).tables()["tags"].look_up(np.array([3, -1]))
        assert table.column("values").to_pylist() == wanted.tolist()
        missing = await served.client.post("/v1/rows", json={"table": "no", "keys": []})
        assert error_of(missing) == (404, "unknown_table")
        for body in (
            {"table": "tags"},
            {"table": "tags", "keys": [2**64]},
            {"table": 1, "keys": []},
        ):
            refused = await served.client.post("/v1/rows", json=body)
            assert error_of(refused) == (422, "inputs_do_not_fit")

    on_shop(test)


def test_model_is_described() -> None:
    _, manifest = exported_shop()

    async def test(served: Served) -> None:
        found = (await served.client.get("/v1/model")).json()
        assert found["version"] == manifest.digest
        assert found["manifest"] == json.loads(manifest.to_json())
        assert found["settings"]["engine"] == "onnx"
        # The example shown on the page can be sent as it is.
        assert (await served.predict(list(map(json.loads, found["golden"])))).status_code == 200

    on_shop(test)


ROWS = json.dumps({"examples": shop_rows(2)}).encode()


@pytest.mark.parametrize(
    ("content", "kind", "wanted"),
    [
        (b"", "application/json", (400, "malformed")),
        (b"{", "application/json", (400, "malformed")),
        (b"\xff", "application/json", (400, "malformed")),
        (b'{"examples": [NaN]}', "application/json", (400, "malformed")),
        (b"[" * 100_000, "application/json", (400, "malformed")),
        (b"[]", "application/json", (422, "inputs_do_not_fit")),
        (b'{"examples": {}}', "application/json", (422, "inputs_do_not_fit")),
        (b'{"examples": [1]}', "application/json", (422, "inputs_do_not_fit")),
        (b'{"examples": [], "more": 1}', "application/json", (422, "inputs_do_not_fit")),
        (ROWS.replace(b'"tags"', b'"tag"'), "application/json", (422, "inputs_do_not_fit")),
        (ROWS, "text/plain", (415, "unsupported_form")),
        (ROWS, "", (415, "unsupported_form")),
        (ROWS, ARROW_STREAM, (400, "malformed")),
        (b"counts\n1 2 3\n", "text/csv", (422, "inputs_do_not_fit")),
        (b"", "text/csv", (400, "malformed")),
        (b"counts,items,tags,shops\nnan 1,1 2 3,4,5\n", "text/csv", (422, "inputs_do_not_fit")),
    ],
)
def test_bad_requests_are_refused_by_name(
    content: bytes, kind: str, wanted: tuple[int, str]
) -> None:
    async def test(served: Served) -> None:
        assert error_of(await served.post(content, kind)) == wanted
        assert (await served.post(ROWS, "application/json")).status_code == 200

    on_shop(test)


def test_prediction_that_is_not_finite_is_not_given() -> None:
    rows = shop_rows(2)
    rows[1]["counts"] = [3e38, 3e38]

    async def test(served: Served) -> None:
        answer = await served.predict(rows)
        # The sigmoid maps even infinity to a finite number: the answer is a number or a refusal,
        # never NaN.
        assert answer.status_code == 200 or error_of(answer) == (422, "prediction_not_finite")

    on_shop(test)


def test_unknown_version_is_refused() -> None:
    async def test(served: Served) -> None:
        digest = exported_shop()[1].digest
        assert (await served.predict(shop_rows(), version=digest)).status_code == 200
        assert error_of(await served.predict(shop_rows(), version="v9")) == (404, "unknown_version")

    on_shop(test)


def test_routes_that_are_not_there_are_errors_of_the_same_form() -> None:
    async def test(served: Served) -> None:
        missing = await served.client.get("/v2")
        assert error_of(missing) == (404, "not_found")
        assert missing.json()["error"]["message"] == "there is no path /v2; /docs lists the paths"
        answer = await served.client.put("/v1/predict")
        assert error_of(answer) == (405, "method_not_allowed")
        message = "/v1/predict does not accept PUT; use POST"
        assert answer.json()["error"]["message"] == message
        assert answer.headers["allow"] == "POST"
        assert error_of(await served.predict([], unknown="maybe")) == (422, "inputs_do_not_fit")

    on_shop(test)


def test_service_recovers_when_the_rows_are_back(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = held(monkeypatch)

    async def test(served: Served) -> None:
        rows.away = True
        assert error_of(await served.predict(shop_rows())) == (503, "rows_unavailable")
        not_ready = await served.client.get("/readyz")
        assert error_of(not_ready) == (503, "not_ready")
        assert "the rows are away: wait" in not_ready.text
        metrics = (await served.client.get("/metrics")).text
        assert "sparsefleet_rows_up 0.0" in metrics
        assert "sparsefleet_ready 0.0" in metrics
        assert (await served.client.get("/healthz")).status_code == 200
        rows.away = False
        assert (await served.predict(shop_rows())).status_code == 200
        assert (await served.client.get("/readyz")).status_code == 200

    on_shop(test)


def test_rows_unavailable_at_the_start_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparsefleet.serving.http.models._FOLLOW_S", 0.01)
    rows = held(monkeypatch)
    rows.away = True

    async def test(served: Served) -> None:
        assert error_of(await served.predict(shop_rows())) == (503, "no_model")
        assert error_of(await served.client.get("/readyz")) == (503, "not_ready")
        assert error_of(await served.client.get("/v1/model")) == (503, "no_model")
        assert (await served.client.get("/openapi.json")).status_code == 200
        rows.away = False
        with anyio.fail_after(WAIT_S):
            while (await served.client.get("/readyz")).status_code != 200:
                await asyncio.sleep(0.01)
        assert (await served.predict(shop_rows())).status_code == 200

    on_shop(test)


def test_defects_are_reported_as_such_and_the_service_stays_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(served: Served) -> None:
        def broken(*_: object) -> None:
            raise ZeroDivisionError

        with monkeypatch.context() as patch:
            patch.setattr("sparsefleet.serving.http.routes.read_examples", broken)
            assert error_of(await served.predict(shop_rows())) == (500, "internal")
        assert (await served.predict(shop_rows())).status_code == 200

    on_shop(test)


def test_metrics_count_requests_and_examples() -> None:
    async def test(served: Served) -> None:
        for _ in range(3):
            await served.predict(shop_rows(4))
        await served.predict([1])
        text = (await served.client.get("/metrics")).text
        assert 'sparsefleet_requests_total{route="/v1/predict",status="200"} 3.0' in text
        assert 'sparsefleet_requests_total{route="/v1/predict",status="422"} 1.0' in text
        assert "sparsefleet_batch_examples_sum 12.0" in text
        assert "sparsefleet_rows_age_seconds NaN" in text
        assert f'version="{exported_shop()[1].digest}"' in text

    on_shop(test)


def test_directory_without_an_export_or_damaged_is_not_served(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="contains no exported model"):
        make_app(ServeConfig(models=tmp_path))
    directory = telling(tmp_path / "export", 1)
    graph = next(directory.glob("graph-*"))
    graph.write_bytes(graph.read_bytes()[:-5])

    async def run() -> None:
        async with serving(directory):
            pass

    with pytest.raises(CorruptFileError, match="bytes, expected"):
        asyncio.run(run())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"port": 70000}, "ServeConfig.port must be an int in 0..65535"),
        ({"workers": 0}, "ServeConfig.workers"),
        ({"timeout_s": float("nan")}, "ServeConfig.timeout_s"),
        ({"token": "short"}, "ServeConfig.token must be 8 or more .* got 5 characters"),
        ({"token": "with a space"}, "ServeConfig.token"),
        ({"engine": "tpu"}, "ServeConfig.engine"),
        ({"max_bytes_under_way": 1}, "ServeConfig.max_bytes_under_way"),
        ({"max_connections": 0}, "ServeConfig.max_connections"),
        ({"allowed_hosts": "model.example.com"}, "ServeConfig.allowed_hosts"),
        ({"allowed_hosts": ("http://model",)}, "ServeConfig.allowed_hosts must be host names"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ServeConfig(models=Path("x"), **settings)


def test_token_is_not_shown() -> None:
    assert "right-token" not in repr(ServeConfig(models=Path("x"), token="right-token"))


def test_pages_ask_for_nothing_from_elsewhere() -> None:
    async def test(served: Served) -> None:
        for path in ("/", "/docs", "/static/index.js", "/static/docs.js", "/static/style.css"):
            answer: httpx.Response = await served.client.get(path)
            assert answer.status_code == 200
            assert "://" not in answer.text
            assert "default-src 'none'" in answer.headers["content-security-policy"]

    on_shop(test)
