"""scripts/stress.py finds a test that does not always pass, and says how often and how."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "scripts" / "stress.py"

TESTS = """
from pathlib import Path

def test_fine():
    pass

def test_every_other_time():
    runs = Path(__file__).with_name("runs")
    runs.write_text(runs.read_text() + "x" if runs.exists() else "x")
    assert len(runs.read_text()) % 2, "an even run"
"""


def stress(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    output = ("--output", str(folder / "kept"), "--load", "0")
    command = [sys.executable, str(SCRIPT), *output, *words, str(folder)]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # they take seconds
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)


def test_a_flaky_test_is_counted_and_its_output_kept(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    done = stress(tmp_path, "--runs", "2")
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    assert any("4 tests in 2 runs" in line for line in lines), done.stdout
    counted = next(at for at, line in enumerate(lines) if line.startswith("1 of 2 runs:"))
    assert lines[counted].endswith("::test_every_other_time")
    assert "run 2: " in lines[counted + 1]
    assert "an even run" in lines[counted + 1]
    assert [path.name for path in (tmp_path / "kept").glob("*.txt")] == ["run-2-pytest.txt"]


def test_tests_that_always_pass_are_a_success(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text("def test_fine():\n    pass\n")
    done = stress(tmp_path, "--runs", "9", "--seconds", "0.001")
    assert done.returncode == 0, done.stdout
    assert "1 tests in 1 runs" in done.stdout


def test_only_quick_tests_are_repeated_if_asked(tmp_path: Path) -> None:
    slow = "\ndef test_slow():\n    time.sleep(0.6)\n"
    (tmp_path / "test_some.py").write_text(f"import time\n{TESTS}{slow}")
    done = stress(tmp_path, "--runs", "3", "--at-most-s", "0.5")
    assert "2 of 3 Python tests took at most 0.5 s" in done.stdout
    assert "7 tests in 3 runs" in done.stdout
    assert "1 of 3 runs: " in done.stdout
