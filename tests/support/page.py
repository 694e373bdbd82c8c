"""Runs the Python code of a page, block after block in one namespace."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def run_page(name: str) -> dict[str, object]:
    """Raises what the first failing block raises; a page without code fails, too."""
    page = DOCS / name
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert blocks, f"{name} has no code"
    names: dict[str, object] = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, str(page), "exec"), names)
    return names
