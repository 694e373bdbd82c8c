"""A job that is killed in the middle and started again ends as if nothing had happened."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.support.launch_process import LaunchProcess, kill_stopped_worker, log_of_success
from tests.support.saved_training import assert_same, contents

SCRIPT = Path(__file__).with_name("resume_script.py")
ROOT = Path(__file__).parents[2]


def launch(directory: Path, *words: str) -> LaunchProcess:
    return LaunchProcess(
        directory,
        *("--servers", "2", "--workers", "2", "--native-servers", "--restart", "all"),
        *(str(SCRIPT), str(directory), *words),
    )


@pytest.mark.slow
def test_killed_job_resumes_from_its_newest_checkpoint_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for directory in (whole, killed):
        directory.mkdir()
    kill_stopped_worker(launch(killed, "stop"), killed)
    assert not (killed / "end").exists()
    for directory in (killed, whole):
        log_of_success(launch(directory))
    assert_same(contents(killed / "end"), contents(whole / "end"))
