"""A job that is killed in the middle and started again ends as if nothing had happened."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tests.support.launch_process import LaunchProcess, wait_until
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
    first = launch(killed, "stop")
    try:
        wait_until((killed / "stopped").exists, "stopped in the second epoch")
        os.kill(int((killed / "stopped").read_text()), signal.SIGKILL)
        assert first.wait() != 0
    finally:
        first.close()
    assert not (killed / "end").exists()
    for directory in (killed, whole):
        job = launch(directory)
        try:
            assert job.wait() == 0, job.output() + job.log("workerlog.0")
        finally:
            job.close()
    assert_same(contents(killed / "end"), contents(whole / "end"))
