"""Mistakes on the command line, and the errors that name the option and the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sparsefleet.cli.main import main
from sparsefleet.nn import SparseEmbeddingBag
from sparsefleet.serving.export import save_inference_model
from sparsefleet.serving.verify import VerifyConfig, verify
from sparsefleet.zoo.recipes import RECIPES, Recipe, find_recipe


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    save_inference_model(folder, SparseEmbeddingBag("ads", 2), torch.ones(2, 3).long(), onnx=False)
    return folder


def error_of(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    try:
        code = main([str(argument) for argument in arguments])
    except SystemExit as error:
        code = error.code  # type: ignore[assignment]
    assert code != 0
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--port", 99999, "--port must be an int in 0..65535, got 99999"),
        ("--timeout", -1, "--timeout must be"),
        ("--drain-timeout", -1, "--drain-timeout must be"),
        ("--max-examples", 0, "--max-examples must be"),
        ("--rows", "nowhere", "rows 'nowhere': expected redis://HOST:PORT/DATABASE?model=NAME"),
    ],
)
def test_serve_names_the_option(
    export: Path, capsys: pytest.CaptureFixture[str], option: str, value: object, message: str
) -> None:
    pytest.importorskip("uvicorn", reason="pip install sparsefleet[serve]")
    assert message in error_of(capsys, "serve", export, option, value)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--tolerance", -1, "--tolerance must be >= 0, got -1.0"),
        ("--sample", 0, "--sample must be >= 1, got 0"),
        ("--timeout", 0, "--timeout must be > 0, got 0.0"),
        ("--token-file", "missing", "--token-file missing cannot be read"),
        ("--report", "missing/report.html", "there is no directory missing; create it"),
    ],
)
def test_verify_names_the_option(
    export: Path, capsys: pytest.CaptureFixture[str], option: str, value: object, message: str
) -> None:
    assert message in error_of(capsys, "verify", export, option, value)


def test_a_required_setting_that_no_side_reports_fails(export: Path) -> None:
    report = verify(export, (), VerifyConfig(expect={"color": "red", "rows": "float32"}))
    assert not report.passed
    result, finding = report.cause
    assert (result.check, finding.what, finding.wanted) == ("settings", "color", "red")
    assert "no side reports it" in finding.found


@pytest.fixture
def recipe_without_data(monkeypatch: pytest.MonkeyPatch) -> str:
    name = next(iter(RECIPES))
    find_recipe(name)
    monkeypatch.setattr(Recipe, "check", lambda *_: None)
    return name


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--epochs", 0, "--epochs must be an int"),
        ("--batch-size", 0, "--batch-size must be an int"),
        ("--workers", 0, "--workers must be an int"),
        ("--servers", -1, "--servers must be an int"),
        ("--out", "/dev/null/report", "cannot write the report there (Not a directory)"),
        ("--out", "/proc/report", "cannot write the report there"),
    ],
)
def test_recipe_names_the_option_before_it_trains(
    recipe_without_data: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    option: str,
    value: object,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in error_of(capsys, "recipe", "run", recipe_without_data, option, value)


def test_a_misspelt_recipe_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    error = error_of(capsys, "recipe", "show", "movielens_two_towr")
    assert error.strip().endswith("did you mean 'movielens_two_tower'?")
