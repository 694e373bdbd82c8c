"""The page on serving is correct."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.support.page import run_page
from tests.support.served_models import telling

from sparsefleet.cli.main import main
from sparsefleet.serving import http
from sparsefleet.serving.http import ServeConfig, make_app

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
SOURCES = Path(http.__file__).parent


def test_code_on_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_page("serving.md")


def test_every_route_and_every_error_is_described(tmp_path: Path) -> None:
    app = make_app(ServeConfig(models=telling(tmp_path / "export", 1)))
    for path in app.openapi()["paths"]:
        assert f" {path}`" in PAGE, path
    text = "".join(path.read_text(encoding="utf-8") for path in SOURCES.glob("*.py"))
    names = re.findall(r"Refusal\(\s*\d+,\s*\"(\w+)\"", text)
    assert "malformed" in names
    for name in names:
        assert f"`{name}`" in PAGE, name


def test_every_flag_that_is_described_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    shown = ""
    for command in ("serve", "serve-switch", "push-rows"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        shown += capsys.readouterr().out
    flags = set(re.findall(r"`[^`\n]*?(--[a-z][a-z-]+)", PAGE))
    assert {flag for flag in flags if flag not in shown} == {"--hold"}
