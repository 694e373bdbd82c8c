"""A suspended rank of a launched collective job is named, and the job is restarted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.launch_process import LaunchProcess, wait_until

# The first time, worker 1 is stopped in the middle of training.
SCRIPT = """\
import os, pathlib, signal, sys
import torch, torch.distributed as dist
from sparsefleet.fleet import join_world, role_from_environment
role = role_from_environment(is_collective=True)
pathlib.Path("pids", f"{role.index}-{role.restarts}").write_text(f"{os.getpid()}\\n")
world = join_world(role, timeout_s=12.0)
for step in range(5):
    if step == 3 and world.rank == 1 and role.restarts == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
    with world.naming_lost(f"all-reduce of step {step}"):
        total = torch.ones(1)
        dist.all_reduce(total, group=world.group)
print("trained to the end with", int(total), "ranks")
world.close()
"""


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[LaunchProcess]:
    (tmp_path / "train.py").write_text(SCRIPT)
    shape = ("--servers", "0", "--workers", "2", "--max-restarts", "1")
    process = LaunchProcess(tmp_path, *shape, "--grace-seconds", "0.5", "--quiet", "train.py")
    yield process
    process.close()


@pytest.mark.job
def test_stopped_rank_is_named_and_the_job_is_restarted(launcher: LaunchProcess) -> None:
    wait_until(lambda: "restart 1 of 1" in launcher.output(), "restarted")
    assert launcher.wait() == 0, launcher.output()
    output = launcher.output()
    assert "worker 1 (pid" in output
    assert "suspended (SIGSTOP)" in output
    assert "then worker 0 exited with code 1" in output
    assert "PeerLostError: all-reduce of step 3: rank 1 is lost" in output
    assert launcher.log("workerlog.0").splitlines()[-1] == "trained to the end with 2 ranks"
    assert sorted(launcher.pids()) == ["0-0", "0-1", "1-0", "1-1"]
    launcher.wait_for_no_child()
