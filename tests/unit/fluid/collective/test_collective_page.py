"""The page about several ranks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sparsefleet.fluid.fleet.settings import BuildStrategy
from sparsefleet.fluid.incubate.fleet.collective import DistributedStrategy

PAGE = (Path(__file__).parents[4] / "docs" / "fluid_collective.md").read_text(encoding="utf-8")


def test_code_on_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(block, "docs/fluid_collective.md", "exec"), {})
    assert (tmp_path / "model" / "fc_0.w_0").exists()


def test_every_field_of_the_strategy_is_on_the_page() -> None:
    for name in set(DistributedStrategy.field_names()) - set(BuildStrategy.field_names()):
        assert f"`{name}`" in PAGE, name
