"""scripts/audit.py checks the pins offline, and says plainly when advisories cannot be reached."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="reads TOML with the library")


@pytest.fixture
def audit() -> ModuleType:
    spec = importlib.util.spec_from_file_location("audit", ROOT / "scripts" / "audit.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_requirement_of_this_project_has_an_exact_pin(audit: ModuleType) -> None:
    texts = [(ROOT / name).read_text() for name in ("constraints.txt", "pyproject.toml")]
    assert audit.problems_of_pins(*texts) == []


def test_problems_of_pins_are_named(audit: ModuleType) -> None:
    project = (
        '[project]\ndependencies = [\n    "NumPy>=1.2",\n    "torch[x] ~= 2.1",\n]\n[tool.x]\n'
    )
    assert audit.problems_of_pins("numpy>=1\ntorch==2.1\nTorch==2.2\n", project) == [
        "constraints.txt, line 1: 'numpy>=1' is not NAME==VERSION",
        "constraints.txt, line 3: torch is pinned twice",
        "pyproject.toml requires numpy, which constraints.txt does not pin",
    ]


def test_without_advisories_it_says_so_and_is_no_success(
    audit: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(audit, "ADVISORIES", "http://127.0.0.1:1/{name}/{version}")
    assert audit.main([]) == 2
    shown = capsys.readouterr()
    assert "one for every requirement" in shown.out
    assert "advisories: NOT CHECKED" in shown.err
    assert "127.0.0.1:1" in shown.err
