"""The page on the fleet is correct."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.page import run_page

import sparsefleet.fleet

PAGE = (Path(__file__).parents[3] / "docs" / "fleet.md").read_text(encoding="utf-8")


def test_code_on_the_page_runs() -> None:
    run_page("fleet.md")


def test_every_listed_call_exists() -> None:
    rows = PAGE[PAGE.index("* `init(") : PAGE.index("## Files")]
    calls = re.findall(r"`(\w+)\(", rows)
    functions = {name for name in sparsefleet.fleet.__all__ if name.islower()}
    assert set(calls) == functions - {"join_world", "role_from_environment"}  # on launching.md
