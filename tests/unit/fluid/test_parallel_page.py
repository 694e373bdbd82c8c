"""The page on several places."""

from __future__ import annotations

import re
from pathlib import Path

from sparsefleet import fluid

PAGE = (Path(__file__).parents[3] / "docs" / "fluid_parallel.md").read_text(encoding="utf-8")


def test_code_on_the_page_runs() -> None:
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(block, "docs/fluid_parallel.md", "exec"), {})


def test_every_field_of_the_strategies_is_on_the_page() -> None:
    for strategy in (fluid.BuildStrategy, fluid.ExecutionStrategy):
        for name in strategy.field_names():
            assert f"`{name}`" in PAGE, name
