"""Verification against rows in a real Redis."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.redis_process import RedisProcess
from tests.unit.serving.verify.breaking import rows_of
from tests.unit.serving.verify.served_model import days

from sparsefleet.serving.export import read_manifest
from sparsefleet.serving.row_stores import RedisVersions, push_rows
from sparsefleet.serving.row_stores.redis_rows import keys_to_bytes
from sparsefleet.serving.updates import RedisServer
from sparsefleet.serving.verify import Report, VerifyConfig, verify


def against(redis: RedisProcess, **settings: Any) -> Report:
    config = VerifyConfig(examples=days().examples, timeout_s=5.0, **settings)
    return verify(days().export, [redis.url], config)


def cause_of(report: Report) -> tuple[str, str]:
    assert report.cause is not None, "all checks hold"
    result, finding = report.cause
    return result.check, finding.name


@pytest.mark.parametrize("is_active", [True, False])
def test_rows_that_were_pushed_pass_without_findings(
    redis: RedisProcess, server: RedisServer, is_active: bool
) -> None:
    push_rows(days().export, server)
    if is_active:
        RedisVersions(server).activate(read_manifest(days().export).digest)
    report = against(redis, label="click")
    assert report.passed, report.to_json()
    assert not report.findings
    summaries = [result.summary for result in report.results]
    assert any("199 rows of 2 tables" in summary for summary in summaries)
    assert any("200 examples, largest difference 0," in summary for summary in summaries)


def test_sample_of_rows_has_its_confidence(redis: RedisProcess, server: RedisServer) -> None:
    push_rows(days().export, server)
    report = against(redis, sample=30)
    assert report.passed
    [rows] = [x for x in report.results if x.check == "parameters" and "redis" in x.side]
    assert "at 95% confidence, at most 0.095 of a table's rows are wrong" in rows.summary


def _stale(client: Any, key: str) -> None:
    keys, values = rows_of(days().old_export, "ids")
    client.hset(key, keys_to_bytes(keys[:1])[0], values[0].tobytes())


def _other(client: Any, key: str) -> None:
    keys, values = rows_of(days().export, "ids")
    client.hset(key, keys_to_bytes(keys[:1])[0], (values[0] + 1).tobytes())


def _first(change: Callable[[Any, str, bytes], None]) -> Callable[[Any, str], None]:
    field = keys_to_bytes(rows_of(days().export, "ids")[0][:1])[0]
    return lambda client, key: change(client, key, field)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (_stale, "rows stale"),
        (_other, "rows differ"),
        (lambda c, key: _first(lambda c, k, f: c.hdel(k, f))(c, key), "rows missing"),
        (lambda c, key: c.hset(key, b"12345678", b"0" * 16), "extra rows"),
        (
            lambda c, key: _first(lambda c, k, f: c.hset(k, f, b"short"))(c, key),
            "row width differs",
        ),
        (lambda c, key: c.hdel(key, "complete"), "half loaded"),
        (lambda c, key: c.delete(key), "half loaded"),
        (lambda c, key: c.delete(key.split("rows:")[0] + "manifest"), None),
    ],
    ids=["stale", "other", "missing", "more", "width", "not complete", "table gone", "untouched"],
)
def test_rows_that_are_wrong(
    redis: RedisProcess,
    server: RedisServer,
    change: Callable[[Any, str], None],
    name: str | None,
) -> None:
    pushed = push_rows(days().export, server)
    change(server.client, RedisVersions(server).rows_key(pushed.digest, "ids"))
    report = against(redis, previous=days().old_export)
    if name is None:
        assert report.passed
    else:
        assert cause_of(report) == ("parameters", name)


def test_push_that_was_broken_off_is_half_loaded(redis: RedisProcess, server: RedisServer) -> None:
    old = push_rows(days().old_export, server)
    RedisVersions(server).activate(old.digest)
    pushed = push_rows(days().export, server)
    server.client.hdel(server.key("versions"), pushed.digest)
    assert cause_of(against(redis)) == ("parameters", "half loaded")


def test_version_of_the_day_before(redis: RedisProcess, server: RedisServer) -> None:
    old = push_rows(days().old_export, server)
    RedisVersions(server).activate(old.digest)
    report = against(redis, previous=days().old_export)
    assert cause_of(report) == ("settings", "old version")
    names = {finding.name for _, finding in report.findings}
    assert {"rows stale", "scores differ"} <= names


def test_redis_without_the_model(redis: RedisProcess, server: RedisServer) -> None:
    assert cause_of(against(redis)) == ("parameters", "not loaded")


def test_unavailable_redis(tmp_path: Path) -> None:
    with RedisProcess(tmp_path) as process:
        pass
    config = VerifyConfig(timeout_s=1.0)
    report = verify(days().export, [process.url.replace("//", "//me:secret@")], config)
    assert cause_of(report) == ("parameters", "unavailable")
    assert "secret" not in report.to_json()
