"""The page on the format says what the code does."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.support.checkpoints import save, two_tables

from sparsefleet.checkpoint.manifest import FORMAT_VERSION

PAGE = (Path(__file__).parents[3] / "docs" / "checkpoint_format.md").read_text(encoding="utf-8")


def test_every_field_of_the_manifest_is_on_the_page(tmp_path: Path) -> None:
    save(str(tmp_path / "a"), two_tables())
    save(str(tmp_path / "b"), two_tables(1), base=str(tmp_path / "a"))
    manifest = json.loads((tmp_path / "b" / "manifest.json").read_text())
    table = manifest["tables"][0]
    things = [manifest, manifest["base"], manifest["dense"][0], table, table["files"][0]]
    for thing in [*things, table["state"][0]]:
        for field in thing:
            assert re.search(rf'[`"]{field}[`"]', PAGE), field
    assert f"format version {FORMAT_VERSION}" in PAGE


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = save(str(tmp_path / "model"), two_tables())
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {}
    exec(block.replace("0123456789abcdef", manifest.token), names)
    assert names["frame"].columns.tolist() == ["key", "values", "state", "counters"]
    assert names["found"].fetchall()[0][0] == 17
