"""Verification against real services: correct ones pass, defects are named."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.serving.verify.breaking import change_rows, copy_of, edit_manifest
from tests.unit.serving.verify.running_service import gateway, service
from tests.unit.serving.verify.served_model import days

from sparsefleet.serving.verify import Report, VerifyConfig, verify


def against(url: str, **settings: Any) -> Report:
    config = VerifyConfig(examples=days().examples, timeout_s=20.0, **settings)
    return verify(days().export, [url], config)


def cause_of(report: Report) -> tuple[str, str]:
    assert report.cause is not None, "all checks hold"
    result, finding = report.cause
    return result.check, finding.name


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    """Yield the URL of a correct service."""
    with service(days().export, engine="torch") as url:
        yield url


@pytest.mark.parametrize("engine", ["torch", "onnx"])
def test_service_of_the_export_passes_without_findings(engine: Any) -> None:
    with service(days().export, engine=engine) as url:
        report = against(url, label="click", expect={"engine": engine})
    assert report.passed, report.to_json()
    assert not report.findings
    checked = {result.check for result in report.results if result.side == url}
    assert checked == {"parameters", "inputs", "predictions", "settings"}
    rows = next(x for x in report.results if (x.check, x.side) == ("parameters", url))
    assert "199 rows of 2 tables" in rows.summary


def test_service_that_takes_few_examples_is_asked_in_parts() -> None:
    with service(days().export, engine="torch", max_examples=9) as url:
        report = against(url, label="click")
    assert report.passed, report.to_json()
    assert not report.findings


@pytest.mark.parametrize(
    ("wrong", "check", "name"),
    [
        ("old export", "settings", "old version"),
        ("int8", "settings", "precision differs"),
        ("engine", "settings", "setting differs"),
        ("token", "settings", "unavailable"),
        ("away", "settings", "unavailable"),
    ],
)
def test_service_that_is_not_the_one_meant(
    wrong: str, check: str, name: str, tmp_path: Path
) -> None:
    export, settings, expected = days().export, {}, {}
    if wrong == "old export":
        export, expected = days().old_export, {"previous": days().old_export}
    elif wrong == "int8":
        export = copy_of(export, tmp_path)
        change_rows(export, "ids", lambda keys, values: (keys, values), format="int8")
        edit_manifest(export, lambda content: content["golden"].update(largest_error=0.1))
    elif wrong == "engine":
        settings, expected = {"engine": "torch"}, {"expect": {"engine": "onnx"}}
    elif wrong == "token":
        settings, expected = {"token": "the right one".replace(" ", "-")}, {"token": "wrong"}
    if wrong == "away":
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            report = against(f"http://127.0.0.1:{taken.getsockname()[1]}")
    else:
        with service(export, **settings) as url:
            report = against(url, **expected)
    assert cause_of(report) == (check, name)


def _each(name: str, change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Changes an input of every example that has it."""
    return lambda rows: [
        {**row, name: change(row[name])} if row.get(name) is not None else row for row in rows
    ]


def _filled(rows: Any) -> Any:
    return [{**row, "counts": row.get("counts") or [0.0, 0.0]} for row in rows]


def _logits(scores: list[float]) -> list[float]:
    array = np.array(scores)
    return list(np.log(array / (1 - array)))


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (_each("ids", lambda ids: [ids[0], ids[2], ids[1], ids[3]]), "slots swapped"),
        (_each("ids", lambda ids: [key + 1 for key in ids]), "ids shifted"),
        (_each("ids", lambda ids: [key * 40503 % 2**20 for key in ids]), "ids hashed differently"),
        (_each("counts", lambda counts: [c / 10 for c in counts]), "values scaled"),
        (_each("tags", lambda tags: tags[:1]), "examples differ"),
        (_filled, "missing values"),
    ],
    ids=["swapped slots", "ids off by one", "other hash", "scaling", "lists cut", "filled"],
)
def test_gateway_that_changes_examples(
    served: str, change: Callable[[Any], Any], name: str
) -> None:
    with gateway(served, examples=change) as front:
        report = against(front)
    assert cause_of(report) == ("inputs", name)


@pytest.mark.parametrize(
    "change",
    [
        lambda scores: [round(score, 3) for score in scores],
        lambda scores: [scores[-1], *scores[:-1]],
        _logits,
    ],
    ids=["rounded", "of the example before", "logits"],
)
def test_gateway_that_changes_scores(served: str, change: Callable[[Any], Any]) -> None:
    with gateway(served, scores=change) as front:
        report = against(front, label="click")
    assert cause_of(report) == ("predictions", "scores differ")
    assert [result.check for result in report.results if result.status == "failed"] == [
        "predictions"
    ]
