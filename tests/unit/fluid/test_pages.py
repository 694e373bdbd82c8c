"""The pages about the Fluid API: their code runs, and their tables are complete."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.page import run_page

import sparsefleet
from sparsefleet import fluid
from sparsefleet.fluid.fleet.settings import BuildStrategy
from sparsefleet.fluid.incubate.fleet.collective import DistributedStrategy

ROOT = Path(__file__).parents[3]


def text_of(page: str) -> str:
    return (ROOT / "docs" / page).read_text(encoding="utf-8")


def run_blocks(page: str) -> None:
    """Run each block of code in a namespace of its own."""
    blocks = re.findall(r"```python\n(.*?)```", text_of(page), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, f"docs/{page}", "exec"), {})


@pytest.mark.parametrize("page", ["fluid_amp.md", "fast_input.md", "dataset.md"])
def test_code_on_the_page_runs(page: str) -> None:
    run_page(page)


def test_code_on_the_page_of_loaders_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(sparsefleet.__file__).parents[1]))
    run_page("loaders.md")


def test_code_on_the_page_of_servers_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TRAINING_ROLE", "PADDLE_PSERVERS_IP_PORT_LIST", "PADDLE_TRAINERS_NUM"):
        monkeypatch.delenv(name, raising=False)
    run_page("fluid_on_servers.md")


def test_code_on_the_page_of_several_places_runs() -> None:
    run_blocks("fluid_parallel.md")


def test_code_on_the_page_of_ranks_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_blocks("fluid_collective.md")
    assert (tmp_path / "model" / "fc_0.w_0").exists()


def test_code_on_the_page_for_users_of_fluid_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", text_of("coming_from_fluid.md"), re.DOTALL)
    assert blocks
    exec(compile("\n".join(blocks), "docs/coming_from_fluid.md", "exec"), {})


def test_the_table_of_supported_names_says_what_is_there() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "fluid_coverage.py"), "--check"]
    assert subprocess.run(command, check=False, timeout=120).returncode == 0, (
        "run python scripts/fluid_coverage.py"
    )


@pytest.mark.parametrize("strategy", [fluid.BuildStrategy, fluid.ExecutionStrategy])
def test_every_field_of_the_strategies_is_on_the_page_of_several_places(strategy: Any) -> None:
    for name in strategy.field_names():
        assert f"`{name}`" in text_of("fluid_parallel.md"), name


def test_every_field_of_the_strategy_is_on_the_page_of_ranks() -> None:
    for name in set(DistributedStrategy.field_names()) - set(BuildStrategy.field_names()):
        assert f"`{name}`" in text_of("fluid_collective.md"), name


@pytest.mark.parametrize(
    "kind", [fluid.QueueDataset, fluid.InMemoryDataset, fluid.FileInstantDataset]
)
def test_every_method_of_a_dataset_is_on_the_page(kind: Any) -> None:
    text = text_of("dataset.md")
    for name, _ in inspect.getmembers(kind, inspect.isfunction):
        if not name.startswith("_") and name not in ("source", "stats"):
            assert f"`{name}(" in text or f"`{name}`" in text, name
