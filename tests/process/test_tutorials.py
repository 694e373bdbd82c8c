"""Every tutorial runs, from the first cell to the last, in an empty directory."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))


def script() -> ModuleType:
    path = ROOT / "scripts" / "run_tutorials.py"
    spec = importlib.util.spec_from_file_location("run_tutorials", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.job
@pytest.mark.filterwarnings("ignore")  # from Jupyter's packages
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_tutorial_runs(path: Path) -> None:
    pytest.importorskip("nbclient", reason="pip install nbclient ipykernel")
    executed = script().execute(path)
    assert any(cell.get("outputs") for cell in executed.cells)


def test_tutorials_are_those_of_the_site() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    named = re.findall(r"tutorials/(\w+)\.ipynb", nav)
    assert sorted(named) == [path.stem for path in NOTEBOOKS]
    assert len(named) >= 7


def test_tutorials_have_outputs_and_links_that_lead_somewhere() -> None:
    for path in NOTEBOOKS:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        assert cells[0]["cell_type"] == "markdown"
        assert any(cell.get("outputs") for cell in cells), f"make tutorials: {path.stem}"
        text = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
            assert "://" in target or (path.parent / target).exists(), f"{path.stem}: {target}"
