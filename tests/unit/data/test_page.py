from __future__ import annotations

import re
from pathlib import Path

from sparsefleet.data import hash64

DOCS = Path(__file__).parents[3] / "docs"
PAGE = DOCS / "data.md"


def run_code_of(page: Path) -> dict[str, object]:
    names: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, str(page), "exec"), names)
    return names


def test_code_on_the_formats_page_runs() -> None:
    run_code_of(DOCS / "data_formats.md")


def test_code_on_the_page_runs() -> None:
    names = run_code_of(PAGE)
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
