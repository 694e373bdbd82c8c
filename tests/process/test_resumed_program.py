"""A Fluid job that is killed in the middle and started again ends as if nothing had happened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.checkpoints import contents
from tests.support.launch_process import LaunchProcess, kill_stopped_worker, log_of_success

from sparsefleet.checkpoint import Checkpoint

SCRIPT = Path(__file__).with_name("program_resume_script.py")


def launch(directory: Path, *words: str) -> LaunchProcess:
    return LaunchProcess(
        directory,
        *("--servers", "2", "--workers", "2", "--restart", "all"),
        *("--env", f"SPARSEFLEET_FLUID_CHECKPOINTS={directory / 'saves'}"),
        *("--env", "SPARSEFLEET_FLUID_CHECKPOINT_SECONDS=0.05"),
        *("--env", "SPARSEFLEET_JOB=resumed"),
        *(str(SCRIPT), str(directory), *words),
    )


def saved(directory: Path) -> dict[str, Any]:
    """What `save_persistables` wrote: a file for each variable, a checkpoint for each table."""
    return {
        path.name: contents(Checkpoint.open(path)) if path.is_dir() else path.read_bytes()
        for path in sorted((directory / "end").iterdir())
    }


@pytest.mark.slow
def test_a_killed_job_resumes_its_newest_checkpoint_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for directory in (whole, killed):
        directory.mkdir()
    kill_stopped_worker(launch(killed, "stop"), killed)
    assert not (killed / "end").exists()
    for directory in (killed, whole):
        log = log_of_success(launch(directory))
        assert ("resumed from" in log) == (directory is killed)
    assert saved(killed) == saved(whole)
