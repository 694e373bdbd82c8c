"""Runs of the example scripts: alone, and as jobs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
DEADLINE_S = 600.0  # generous, for a loaded machine


def run_alone(name: str, *flags: str) -> str:
    """Return the output of `python examples/<name>.py`."""
    return _run([sys.executable, str(EXAMPLES / f"{name}.py"), *flags])


def run_launched(
    name: str,
    directory: Path,
    *flags: str,
    launch: tuple[str, ...] = (),
    deadline_s: float = DEADLINE_S,
) -> str:
    """Return the launcher's output for a job of 2 servers and 2 workers, including all of worker
    0's.
    """
    command = [sys.executable, "-m", "sparsefleet", "launch", "--servers", "2", "--workers", "2"]
    command += ["--log-dir", str(directory / "logs"), "--show", "worker.0", *launch]
    return _run([*command, str(EXAMPLES / f"{name}.py"), *flags], deadline_s)


def number_after(words: str, printed: str) -> float:
    """Return the number that follows `words`."""
    found = re.search(rf"{re.escape(words)} (-?\d+(?:\.\d+)?)", printed)
    assert found is not None, printed
    return float(found.group(1))


def _run(command: list[str], deadline_s: float = DEADLINE_S) -> str:
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=deadline_s, check=False, env=environ
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
