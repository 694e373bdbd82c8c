"""Verification against running trainings, published updates, and layers of a service."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.support.saved_training import click_batches, make_trainer
from tests.support.servers import JOB_KEY, NativeServers
from tests.unit.serving.verify.breaking import copy_of, edit_manifest, take_file
from tests.unit.serving.verify.running_service import service
from tests.unit.serving.verify.served_model import Clicks, batch, days, trainer_of

from sparsefleet.serving.verify import FoundRows, Report, Side, TableFacts, VerifyConfig, verify
from sparsefleet.train import PublishConfig


def cause_of(report: Report) -> tuple[str, str]:
    assert report.cause is not None, "all checks hold"
    result, finding = report.cause
    return result.check, finding.name


def test_servers_of_a_training_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSEFLEET_JOB_KEY", JOB_KEY.decode())
    with NativeServers(2) as servers:
        with make_trainer(servers.endpoints, model=Clicks()) as trainer:
            trainer.load(days().checkpoint)
            side = ",".join(servers.endpoints)
            report = verify(days().export, [side])
            assert report.passed, report.to_json()
            assert any("199 rows of 2 tables" in result.summary for result in report.results)
            trainer.fit([batch(8, seed=1)])
            assert cause_of(verify(days().export, [side])) == ("parameters", "rows differ")


def test_model_with_buffers_and_dropout_raises_no_alarm(tmp_path: Path) -> None:
    with make_trainer() as trainer:
        trainer.fit(click_batches(3))
        trainer.save(tmp_path / "checkpoint")
        trainer.export(tmp_path / "export", click_batches(1)[0], onnx=False, rows="int8")
    report = verify(tmp_path / "export", [str(tmp_path / "checkpoint")])
    assert report.passed, report.to_json()
    assert not report.findings


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Updates of the export of day 2, and the checkpoint that they lead to."""
    folder = tmp_path_factory.mktemp("published")
    publish = PublishConfig(model=days().export, target=folder / "updates", every_steps=2)
    with trainer_of(Clicks(), publish=publish) as trainer:
        trainer.load(days().checkpoint)
        trainer.fit([batch(32, seed=step) for step in range(5)])
        trainer.save(folder / "checkpoint")
    return folder


def test_updates_are_applied_before_anything_is_compared(published: Path) -> None:
    config = VerifyConfig(examples=days().examples, updates=published / "updates", timeout_s=20.0)
    with service(days().export, updates=str(published / "updates")) as url:
        report = verify(days().export, [str(published / "checkpoint"), url], config)
        assert report.passed, report.to_json()
        assert not report.findings
        before = verify(days().export, [url], VerifyConfig(examples=days().examples))
    assert cause_of(before) == ("settings", "updates differ")


def test_service_that_does_not_follow_updates_is_reported(published: Path) -> None:
    with service(days().export) as url:
        config = VerifyConfig(updates=published / "updates", timeout_s=1.0)
        report = verify(days().export, [url], config)
    assert cause_of(report) == ("settings", "updates differ")


def test_layer_at_which_a_service_parts_is_named(tmp_path: Path) -> None:
    other = copy_of(days().export, tmp_path)
    take_file(other, "graph", days().old_export)
    take_file(other, "parameters", days().old_export)
    edit_manifest(other, lambda content: content["golden"].update(largest_error=1.0))
    with service(other, engine="torch") as url:
        report = verify(days().export, [url], VerifyConfig(examples=days().examples))
    [finding] = [finding for _, finding in report.findings if finding.name == "scores differ"]
    assert "the first difference is at linear(hidden.weight, hidden.bias) (linear)" in finding.found


class Shelf(Side):
    """A custom store that knows only rows, and has lost one."""

    def tables(self) -> dict[str, TableFacts]:
        return {"ids": TableFacts(4), "tags": TableFacts(3)}

    def fetch(self, table: str, keys: np.ndarray) -> FoundRows:
        found = keys != keys[0]
        return FoundRows(keys, found, np.zeros((len(keys), self.tables()[table].dim), np.float32))


def test_side_of_ones_own_says_what_it_can() -> None:
    report = verify(days().export, [Shelf("shelf")])
    names = {finding.name for _, finding in report.findings}
    assert names == {"rows missing", "rows differ", "scores differ"}
