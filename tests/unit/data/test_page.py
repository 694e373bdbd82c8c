from __future__ import annotations

import re
from pathlib import Path

from tests.support.page import run_page

from sparsefleet.data import hash64

DOCS = Path(__file__).parents[3] / "docs"
PAGE = DOCS / "data.md"


def test_code_on_the_formats_page_runs() -> None:
    run_page("data_formats.md")


def test_code_on_the_page_runs() -> None:
    names = run_page(PAGE.name)
    bad = (names["folder"] / "bad.tsv").read_text()  # type: ignore[operator]
    assert "part-2\t1\t13\t" in bad


def test_hashes_on_the_page_match_the_code() -> None:
    rows = re.findall(
        r"^\| (\(empty\)|`[^`]+`) \| (\d+) \| `?([0-9A-F]+)`? \|$",
        PAGE.read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    assert len(rows) == 5
    for text, seed, wanted in rows:
        found = hash64("" if text == "(empty)" else text.strip("`"), int(seed))
        assert wanted in (f"{found:016X}", str(found))
