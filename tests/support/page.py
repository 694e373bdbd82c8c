"""Runs the Python code of a page, block after block in one namespace."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[2] / "docs"


def run_page(name: str, *, replaced: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Run the blocks and return their variables; a page without code fails.

    replaced: text of the page -> the text to run in its place.
    """
    page = DOCS / name
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert blocks, f"{name} has no code"
    names: dict[str, Any] = {"__name__": "page"}
    for number, block in enumerate(blocks):
        for old, new in (replaced or {}).items():
            block = block.replace(old, new)
        exec(compile(block, f"docs/{name}, block {number}", "exec"), names)
    return names
