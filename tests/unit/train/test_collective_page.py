"""The page on collective training."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
from tests.support.page import run_page

from sparsefleet.collective import CollectiveStrategy
from sparsefleet.fleet import Fleet
from sparsefleet.fleet._process import fleet

PAGE = Path(__file__).parents[3] / "docs" / "collective.md"


def test_code_on_the_page_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    vars(fleet).update(vars(Fleet()))  # the page uses the one of the process
    try:
        run_page(PAGE.name)
    finally:
        vars(fleet).update(vars(Fleet()))


def test_every_setting_is_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for field in fields(CollectiveStrategy):
        assert f"`{field.name}`" in text, field.name
