from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.page import run_page


def test_code_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_page("zoo.md")


def test_code_of_the_page_of_recipes_runs() -> None:
    run_page("recipes.md")
