from __future__ import annotations

import inspect
import re
from pathlib import Path

from sparsefleet import fluid

PAGE = Path(__file__).parents[3] / "docs" / "dataset.md"


def test_code_on_the_page_runs() -> None:
    names: dict[str, object] = {"__name__": "page"}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 6
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)


def test_every_method_is_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for kind in (fluid.QueueDataset, fluid.InMemoryDataset, fluid.FileInstantDataset):
        for name, _ in inspect.getmembers(kind, inspect.isfunction):
            if not name.startswith("_") and name not in ("source", "stats"):
                assert f"`{name}(" in text or f"`{name}`" in text, name
