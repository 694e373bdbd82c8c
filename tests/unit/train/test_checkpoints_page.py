from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.page import run_page


def test_code_on_the_page_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    run_page("checkpoints.md")
