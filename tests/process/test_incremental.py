"""The example of daily training, which resumes from the previous day's save."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.process.example_run import EXAMPLES, number_after, run_alone, run_launched

NAME = "incremental/train_day"
ROWS = ("--rows", "8000")


@pytest.mark.job
def test_second_day_beats_a_cold_start(tmp_path: Path) -> None:
    day_1 = str(tmp_path / "day-1")
    first = run_alone(NAME, "--day", "1", "--out", day_1, *ROWS)
    assert number_after("rows at the start", first) == 0
    warm = run_alone(NAME, "--day", "2", "--start", day_1, *ROWS)
    cold = run_alone(NAME, "--day", "2", *ROWS)
    known = number_after(", at the end", first)
    assert number_after("rows at the start", warm) == known
    assert number_after(", at the end", warm) > known, "new ids got rows"
    assert number_after("after", warm) > number_after("after", cold) + 0.01


@pytest.mark.slow
def test_second_day_starts_on_another_number_of_servers(tmp_path: Path) -> None:
    day_1, day_2 = str(tmp_path / "day-1"), str(tmp_path / "day-2")
    first = run_launched(NAME, tmp_path, "--day", "1", "--out", day_1, *ROWS)
    known = number_after(", at the end", first)
    more = ("--servers", "3")
    words = ("--day", "2", "--start", day_1, "--out", day_2)
    warm = run_launched(NAME, tmp_path, *words, *ROWS, launch=more)
    cold = run_launched(NAME, tmp_path, "--day", "2", *ROWS)
    assert number_after("rows at the start", warm) == known
    assert number_after(", at the end", warm) > known
    assert number_after("before", warm) > number_after("before", cold) + 0.02
    assert number_after("after", warm) > number_after("after", cold) + 0.01
    assert (Path(day_2) / "manifest.json").exists()


def test_example_says_how_to_run_it() -> None:
    text = (EXAMPLES / f"{NAME}.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    assert f"python examples/{NAME}.py" in text
