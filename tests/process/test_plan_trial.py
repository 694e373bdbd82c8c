"""`sparsefleet plan --try` with real processes: servers, workers, one script."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.job

SCRIPT = Path(__file__).parent / "trial_script.py"
TIMEOUT_S = 300


def plan(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sparsefleet", "plan", "--seconds", "3", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def test_a_script_is_tried_in_several_modes_and_saves_nothing(tmp_path: Path) -> None:
    done = plan(tmp_path, "--modes", "local,sync,async", "--json", "--try", str(SCRIPT))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    by_mode: dict[str, dict[str, Any]] = {one["mode"]: one for one in found["modes"]}
    assert list(by_mode) == ["local", "sync", "async"]
    for one in by_mode.values():
        assert not one["error"]
        assert one["examples"] > 0 < one["examples_per_s"]
        assert 2.5 < one["seconds"] < 60
        assert one["is_held_out"]
        assert one["auc"] > 0.6
        assert 0 < one["loss"] < 1
    assert by_mode["local"]["bytes_per_example"] == 0
    assert by_mode["sync"]["bytes_per_example"] > 20
    assert by_mode["sync"]["staleness"] == 0
    assert found["recommended"] in ("sync", "async")
    assert found["reasons"]
    assert not any(tmp_path.iterdir()), "a trial left files"


def test_a_mode_that_the_script_cannot_use_has_its_reason_in_the_table(tmp_path: Path) -> None:
    words = ("--modes", "local,geo", "--log-dir", "logs", "--try", str(SCRIPT), "adagrad")
    done = plan(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert "\ngeo " in done.stdout
    assert "needs plain SGD" in done.stderr  # in full; the table shows only the beginning
    assert "no other mode completed" in done.stdout
    assert (tmp_path / "logs" / "geo" / "workerlog.0").exists()


@pytest.mark.parametrize(
    ("word", "said"),
    [("failing", "RuntimeError: the data is missing"), ("no-trainer", "exited without training")],
)
def test_a_script_that_fails_everywhere_is_an_error(tmp_path: Path, word: str, said: str) -> None:
    done = plan(tmp_path, "--modes", "local", "--try", str(SCRIPT), word)
    assert done.returncode == 1
    assert said in done.stderr
