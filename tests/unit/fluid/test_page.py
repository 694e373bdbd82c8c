from __future__ import annotations

import re
from pathlib import Path

import pytest

import sparsefleet

PAGE = Path(__file__).parents[3] / "docs" / "loaders.md"


def test_code_on_the_page_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(sparsefleet.__file__).parents[1]))
    names: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
