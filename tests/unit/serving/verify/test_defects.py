"""Every defect of the corpus is caught and named; a model without defects passes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.serving.verify.copy_defects import COPY_DEFECTS, SAME_VERSION_DEFECTS
from tests.unit.serving.verify.defect import Defect, Setup
from tests.unit.serving.verify.export_defects import EXPORT_DEFECTS
from tests.unit.serving.verify.input_defects import INPUT_DEFECTS
from tests.unit.serving.verify.served_model import batch, days, write_examples

from sparsefleet.serving.verify import Report, VerifyConfig, verify
from sparsefleet.serving.verify.sides import ExportSide

CORPUS = [*EXPORT_DEFECTS, *COPY_DEFECTS, *INPUT_DEFECTS]


class UnversionedCopy(ExportSide):
    """A deployed copy that does not know its version, as a custom store may not."""

    def version(self) -> str | None:  # type: ignore[override]
        return None

    def checksums(self) -> None:  # type: ignore[override]
        return None


def run(setup: Setup) -> Report:
    return verify(setup.export, setup.online, VerifyConfig(**setup.settings))


def require_caught(defect: Defect, report: Report) -> None:
    assert not report.passed
    assert report.cause is not None
    result, finding = report.cause
    assert (result.check, finding.name) == (defect.check, defect.finding), report.to_json()
    assert finding.found
    assert finding.wanted


@pytest.mark.parametrize("defect", CORPUS, ids=lambda defect: defect.name)
def test_defect_is_caught_and_named(defect: Defect, tmp_path: Path) -> None:
    require_caught(defect, run(defect.make(tmp_path)))


@pytest.mark.parametrize("defect", SAME_VERSION_DEFECTS, ids=lambda defect: defect.name)
def test_defect_of_a_copy_without_version_is_caught_and_named(
    defect: Defect, tmp_path: Path
) -> None:
    setup = defect.make(tmp_path)
    settings = {"previous": days().old_export, **setup.settings}
    copies = tuple(UnversionedCopy(path) for path in setup.online)
    require_caught(defect, run(Setup(setup.export, copies, settings)))


def test_corpus_has_more_than_twenty_defects_of_different_names() -> None:
    names = [defect.name for defect in (*CORPUS, *SAME_VERSION_DEFECTS)]
    assert len(names) == len(set(names)) > 20
    assert {defect.check for defect in CORPUS} == {
        "inputs",
        "parameters",
        "predictions",
        "pruning",
        "settings",
    }


def test_model_without_defect_passes_without_findings(tmp_path: Path) -> None:
    inputs, _ = batch(200, seed=9)
    write_examples(tmp_path / "online.parquet", inputs)
    report = verify(
        days().export,
        [str(days().checkpoint), str(days().export)],
        VerifyConfig(
            examples=days().examples,
            online_examples=tmp_path / "online.parquet",
            label="click",
            previous=days().old_export,
            expect={"rows": "float32"},
        ),
    )
    assert report.passed
    assert not report.findings
    assert all(result.status == "passed" for result in report.results)
    checks = {(result.check, result.side) for result in report.results}
    assert ("parameters", str(days().checkpoint)) in checks
    assert ("predictions", str(days().checkpoint)) in checks
