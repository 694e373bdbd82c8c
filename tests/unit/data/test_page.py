from __future__ import annotations

import re
from pathlib import Path

from sparsefleet.data import hash64

PAGE = Path(__file__).parents[3] / "docs" / "data.md"


def test_code_of_the_page_runs() -> None:
    names: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    bad = (names["folder"] / "bad.tsv").read_text()  # type: ignore[operator]
    assert "part-2\t1\t13\t" in bad


def test_hashes_of_the_page_are_those_of_the_code() -> None:
    rows = re.findall(
        r"^\| (\(empty\)|`[^`]+`) \| (\d+) \| `?([0-9A-F]+)`? \|$",
        PAGE.read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    assert len(rows) == 5
    for text, seed, wanted in rows:
        found = hash64("" if text == "(empty)" else text.strip("`"), int(seed))
        assert wanted in (f"{found:016X}", str(found))
