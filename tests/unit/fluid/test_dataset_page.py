from __future__ import annotations

import inspect
from pathlib import Path

from tests.support.page import run_page

from sparsefleet import fluid

PAGE = Path(__file__).parents[3] / "docs" / "dataset.md"


def test_code_on_the_page_runs() -> None:
    run_page(PAGE.name)


def test_every_method_is_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for kind in (fluid.QueueDataset, fluid.InMemoryDataset, fluid.FileInstantDataset):
        for name, _ in inspect.getmembers(kind, inspect.isfunction):
            if not name.startswith("_") and name not in ("source", "stats"):
                assert f"`{name}(" in text or f"`{name}`" in text, name
