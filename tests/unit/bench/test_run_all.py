from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.bench.bench_path import BENCH

import run_all
from day_record import DayRecord
from parts import PARTS, Part, choose

WRITES = "import json, sys; open(sys.argv[sys.argv.index('--json') + 1], 'w').write('{\"x\": 1}')"


def part(folder: Path, name: str, code: str) -> Part:
    script = folder / f"{name}.py"
    script.write_text(code, encoding="utf-8")
    return Part(name=name, script=str(script), expected_s=1, quick_s=1)


def options(*, repeats: int | None = None) -> argparse.Namespace:
    return argparse.Namespace(quick=True, repeats=repeats)


@pytest.fixture(autouse=True)
def _logs_in_a_folder_of_the_test(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(run_all, "ROOT", tmp_path)


def test_parts_fit_into_the_time_that_is_promised() -> None:
    assert sum(part.quick_s for part in PARTS) < 4.5 * 60
    assert sum(part.expected_s for part in PARTS) < 70 * 60


def test_part_that_fails_is_put_on_record_and_the_rest_continues(tmp_path: Path) -> None:
    record = DayRecord(tmp_path / "day.json")
    parts = [
        part(tmp_path, "fails", "print('last words', flush=True); raise SystemExit(3)"),
        Part(name="absent", script="no_such_script.py", expected_s=1, quick_s=1),
        part(tmp_path, "works", WRITES),
        part(tmp_path, "judges", f"{WRITES}; sys.exit(1)"),
    ]
    run_all.run_parts(parts, record, options())
    assert "exited with code 3" in record.parts["fails"]["error"]
    assert "last words" in record.parts["fails"]["error"]
    assert [record.has_failed(one.name) for one in parts] == [True, False, False, False]
    assert record.figures("works") == record.figures("judges") == {"x": 1}
    assert record.figures("fails") is None


def test_part_that_hangs_is_ended_at_its_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_all, "PATIENCE", 0.0)
    monkeypatch.setattr(run_all, "GRACE_S", 0.2)
    record = DayRecord(tmp_path / "day.json")
    hangs = part(tmp_path, "hangs", "import threading; threading.Event().wait()")
    run_all.run_parts([hangs], record, options())
    assert "its deadline" in record.parts["hangs"]["error"]


def test_second_run_of_a_day_replaces_its_parts_and_keeps_the_others(tmp_path: Path) -> None:
    path = tmp_path / "day.json"
    one, other = part(tmp_path, "one", WRITES), part(tmp_path, "other", WRITES)
    run_all.run_parts([one, other], DayRecord(path), options())
    again = part(tmp_path, "one", WRITES)
    run_all.run_parts([again], DayRecord(path), options(repeats=7))
    held = json.loads(path.read_text(encoding="utf-8"))["parts"]
    assert held["one"]["figures"] == {"x": 1}
    assert "--repeats 7" in held["one"]["command"]
    assert "--repeats 1" in held["other"]["command"]


def test_parts_are_chosen_by_how_their_names_begin() -> None:
    assert [one.name for one in choose(["ctr-l", "growth-d"], [])] == ["ctr-local", "growth-delay"]
    assert choose([], []) == list(PARTS)
    assert not {"ctr-local", "tables"} & {one.name for one in choose([], ["ctr", "tab"])}
    with pytest.raises(ValueError, match="no part is called 'cat'; there are ctr-local"):
        choose(["cat"], [])


@pytest.mark.slow
def test_a_part_runs_from_the_command_line_to_its_chart(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCH / "run_all.py"), "--quick", "--only", "growth-width"]
    folders = ["--results", str(tmp_path), "--day", "2026-01-02"]
    done = subprocess.run([*command, *folders], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "2026-01-02.md").read_text(encoding="utf-8")
    assert "A quick run" in page
    assert "copied by memcpy" in page
    assert (tmp_path / "images" / "bench_width.png").exists()
