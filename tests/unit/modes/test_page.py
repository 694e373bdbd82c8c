"""The page on modes is correct."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sparsefleet.modes import AsyncConfig, HybridConfig

PAGE = (Path(__file__).parents[3] / "docs" / "modes.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("index", range(len(BLOCKS)))
def test_code_runs(index: int) -> None:
    exec(compile(BLOCKS[index], f"docs/modes.md, block {index}", "exec"), {"__name__": "page"})


def test_every_knob_is_listed() -> None:
    listed = re.findall(r"^\| `(\w+)` \|", PAGE[PAGE.index("| `AsyncConfig` |") :], re.MULTILINE)
    assert set(AsyncConfig.__dataclass_fields__) <= set(listed)
    assert set(HybridConfig.__dataclass_fields__) <= set(AsyncConfig.__dataclass_fields__)
