"""The report as people see it: terminal, page, JSON and exit code."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from tests.unit.serving.verify.breaking import Rows, change_rows, copy_of
from tests.unit.serving.verify.served_model import days

from sparsefleet.cli.main import main
from sparsefleet.serving.verify.report import difference_histogram, row_bars, score_scatter
from sparsefleet.serving.verify.row_comparison import RowTally


class Tags(HTMLParser):
    """Counts tags, and records what a page would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.count: dict[str, int] = {}
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1
        self.fetched += [str(value) for name, value in attrs if name in ("src", "href")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del attrs
        self.count[tag] = self.count.get(tag, 0) + 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the export with rows that were not trained."""

    def change(keys: np.ndarray, values: np.ndarray) -> Rows:
        values[:20] += 0.25
        return keys[3:], values[3:]

    copy = copy_of(days().export, tmp_path_factory.mktemp("broken"))
    change_rows(copy, "ids", change)
    return copy


def run(directory: Path, *flags: str) -> int:
    flags = ("--examples", str(days().examples), "--label", "click", *flags)
    return main(["verify", str(directory), "--online", str(days().checkpoint), *flags])


def test_model_that_is_right_ends_with_0(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert run(days().export, "--report", str(tmp_path / "report.html")) == 0
    printed = capsys.readouterr().out
    assert "PASSED" in printed
    assert "199 rows of 2 tables" in printed
    assert "failed" not in printed
    assert "Passed" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_model_that_is_wrong_ends_with_1_and_says_where_to_look(
    broken: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert run(broken, "--report", str(tmp_path / "report.json")) == 1
    printed = capsys.readouterr().out
    assert "FAILED: rows missing (parameters): table 'ids'" in printed
    assert re.search(r"found +17 of 157 rows differ, by up to 0.25", printed)
    assert re.search(r"example +key \d+, value 0: export ", printed)
    assert "the first difference is at look_up(table 'ids') (look_up)" in printed
    content = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert content["passed"] is False
    names = {finding["name"] for result in content["results"] for finding in result["findings"]}
    assert {"rows missing", "rows differ", "scores differ", "golden examples differ"} == names


def test_page_has_pictures_and_needs_nothing_else(broken: Path, tmp_path: Path) -> None:
    assert run(broken, "--report", str(tmp_path / "report.html")) == 1
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert tags.fetched == []
    assert tags.count["svg"] == 4
    assert tags.count["circle"] == 200
    assert "Failed: rows missing (parameters)" in page
    assert 'class="first"' in page
    assert "url(" not in page
    assert "<script" not in page


def test_names_cannot_break_the_page() -> None:
    bars = row_bars({"<script>alert(1)</script>": RowTally(compared=3, same=3)})
    assert "<script" not in bars
    assert "&lt;script&gt;" in bars


def test_pictures_of_scores_that_are_not_numbers() -> None:
    offline, online = np.array([0.1, 0.2, np.nan]), np.array([0.1, np.inf, 0.3])
    gaps = np.array([0.0, np.inf, np.inf])
    assert score_scatter(offline, online, gaps, 1e-5).count("<circle") == 1
    assert "2 examples" in difference_histogram(gaps, 1e-5)
    assert score_scatter(offline, online[:2], gaps, 1e-5) == ""


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--report", "report.pdf"), "--report must end with .html or .json"),
        (("--expect", "engine"), "--expect must be NAME=VALUE"),
        (("--tolerance", "-1"), "tolerance must be >= 0"),
        (("--online", "nowhere"), "'nowhere' does not exist"),
        (("--label", "nothing"), "has no label column 'nothing'"),
        (("--examples", "nowhere.csv"), "nowhere.csv: no such file"),
    ],
)
def test_invalid_command(flags: tuple[str, str], said: str, capsys: pytest.CaptureFixture) -> None:
    assert run(days().export, *flags) == 2
    assert said in capsys.readouterr().err


def test_directory_without_an_export(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["verify", str(tmp_path)]) == 2
    assert "contains no exported model" in capsys.readouterr().err
