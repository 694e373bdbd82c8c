"""The page on exporting is correct."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from sparsefleet.serving.export.manifest import ExportManifest

PAGE = (Path(__file__).parents[4] / "docs" / "exporting.md").read_text(encoding="utf-8")


def test_code_on_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)):
        exec(compile(block, f"docs/exporting.md, block {number}", "exec"), names)


def test_every_field_of_the_manifest_is_described() -> None:
    described = PAGE[PAGE.index("* `created`") :]
    for field in fields(ExportManifest):
        assert f"`{field.name}" in described, field.name
