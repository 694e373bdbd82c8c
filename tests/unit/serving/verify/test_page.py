"""The page on going online is correct."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.support.page import run_page
from tests.unit.serving.verify.test_defects import CORPUS, SAME_VERSION_DEFECTS

from sparsefleet.cli.main import make_parser
from sparsefleet.serving import verify

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs" / "going_online.md").read_text(encoding="utf-8")


def test_code_on_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_page("going_online.md")


def test_commands_on_the_page_are_valid() -> None:
    text = PAGE.replace("\\\n", "")
    commands = re.findall(r"^sparsefleet (verify|push-rows|serve) (.*?)&?$", text, re.MULTILINE)
    assert len(commands) == 6
    for command, flags in commands:
        make_parser().parse_args([command, *flags.split()])


def test_every_finding_has_its_line() -> None:
    found: set[str] = set()
    for path in Path(verify.__file__).parent.glob("*.py"):
        for name in re.findall(r"\bFinding\(\s*name=(.*?),", path.read_text(encoding="utf-8")):
            found |= set(re.findall(r'"([a-z ]+)"', name))
    assert "rows missing" in found
    described = set(re.findall(r"`([a-zA-Z ]+)`", PAGE[PAGE.index("| check | finding |") :]))
    assert found <= described
    assert {defect.finding for defect in (*CORPUS, *SAME_VERSION_DEFECTS)} <= described
