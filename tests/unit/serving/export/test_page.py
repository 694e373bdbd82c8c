"""The page on exporting is correct."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
from tests.support.page import run_page

from sparsefleet.serving.export.manifest import ExportManifest

PAGE = (Path(__file__).parents[4] / "docs" / "exporting.md").read_text(encoding="utf-8")


def test_code_on_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_page("exporting.md")


def test_every_field_of_the_manifest_is_described() -> None:
    described = PAGE[PAGE.index("* `created`") :]
    for field in fields(ExportManifest):
        assert f"`{field.name}" in described, field.name
