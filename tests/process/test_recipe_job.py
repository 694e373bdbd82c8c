"""A recipe as a job of servers and workers, on real data where it is present."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

DATA = Path(__file__).parents[3] / "shared" / "data"
DEADLINE_S = 600.0


@pytest.mark.job
@pytest.mark.skipif(not (DATA / "adult").is_dir(), reason="../shared/data/adult is absent")
def test_wide_deep_learns_census_income_in_async_mode(tmp_path: Path) -> None:
    flags = ["--data", str(DATA), "--mode", "async", "--servers", "1", "--workers", "2"]
    flags += ["--epochs", "1", "--out", str(tmp_path), "--quiet"]
    command = [sys.executable, "-m", "sparsefleet", "recipe", "run", "census_wide_deep", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["servers"], report["workers"], report["mode"]) == (1, 2, "async")
    assert report["figures"]["auc"] > 0.85
    assert "| auc |" in done.stdout
