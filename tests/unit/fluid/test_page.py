from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.page import run_page

import sparsefleet


def test_code_on_the_page_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(sparsefleet.__file__).parents[1]))
    run_page("loaders.md")
