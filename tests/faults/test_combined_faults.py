"""Jobs that lose several processes at once, or a process in the middle of something else."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from tests.support.launch_process import LaunchProcess, wait_until

pytestmark = pytest.mark.job

Start = Callable[..., LaunchProcess]
BATCHES = 60
RECORDS = 2 * BATCHES * 32


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start the ledger job on two servers and two workers; return when both workers train."""
    started: list[LaunchProcess] = []

    def begin(*words: str, mode: str, ledger: Sequence[str] = ()) -> LaunchProcess:
        job = ("--servers", "2", "--workers", "2", "--env", "OMP_NUM_THREADS=1", *words)
        size = ("--mode", mode, "--batches", str(BATCHES), "--pace-ms", "30")
        out = ("--out", str(tmp_path), *ledger)
        launcher = LaunchProcess(tmp_path, *job, "-m", "sparsefleet.cli.ledger", *size, *out)
        started.append(launcher)
        begun = [tmp_path / f"begun-{rank}" for rank in range(2)]
        wait_until(
            lambda: all(path.exists() for path in begun) or launcher.process.poll() is not None,
            "all workers train",
        )
        for path in begun:
            path.unlink()
        return launcher

    yield begin
    for launcher in started:
        launcher.close()


def pids_of(launcher: LaunchProcess, name: str) -> list[int]:
    """Return the pids of all processes so far that had this name, as reported by the launcher."""
    pattern = rf"{name} (?:started.*?, pid (\d+)|\(pid.*restarted alone, pid (\d+))"
    return [int(a or b) for a, b in re.findall(pattern, launcher.output())]


def kill_together(launcher: LaunchProcess, names: Sequence[str]) -> None:
    pids = [pids_of(launcher, name)[-1] for name in names]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def require_each_record_once(launcher: LaunchProcess, directory: Path) -> None:
    assert launcher.wait() == 0, launcher.output() + launcher.log("workerlog.0")
    found = json.loads((directory / "ledger.json").read_text())
    assert (found["records"], found["missing"], found["repeated"]) == (RECORDS, 0, 0), found


@pytest.mark.parametrize(
    ("mode", "durability", "names"),
    [
        ("sync", "process", ("server 0", "server 1")),
        ("async", "disk", ("server 0", "worker 1")),
        ("geo", "disk", ("server 1", "worker 0")),
        ("half_async", "replica", ("server 0", "server 1", "worker 0")),
        ("sync", "replica", ("replica 0", "server 0")),
    ],
)
def test_processes_killed_in_the_same_moment_cost_no_record(
    start: Start, tmp_path: Path, mode: str, durability: str, names: tuple[str, ...]
) -> None:
    launcher = start("--durability", durability, mode=mode)
    kill_together(launcher, names)
    for name in names:
        wait_until(
            lambda name=name: (
                len(pids_of(launcher, name)) > 1 or launcher.process.poll() is not None
            ),
            f"{name} is restarted",
        )
    kill_together(launcher, names[-1:])  # and once more, perhaps while it recovers
    require_each_record_once(launcher, tmp_path)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_job_whose_launcher_is_killed_continues_when_it_is_started_again(
    start: Start, tmp_path: Path, mode: str
) -> None:
    state = ("--state-dir", str(tmp_path / "state"))
    launcher = start(*state, mode=mode)
    names = ("server 0", "server 1", "worker 0", "worker 1")
    children = {name: pids_of(launcher, name)[-1] for name in names}
    launcher.process.kill()
    launcher.process.wait()
    for name, pid in children.items():
        wait_until(lambda pid=pid: not is_running(pid), f"{name} has ended")
    again = start(*state, mode=mode)
    require_each_record_once(again, tmp_path)
    assert "continuing job" in again.output()


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "name"),
    [("sync", "server 1"), ("async", "server 0"), ("sync", "worker 1"), ("async", "worker 0")],
)
def test_process_stopped_for_longer_than_the_peer_timeout_continues(
    start: Start, tmp_path: Path, mode: str, name: str
) -> None:
    launcher = start(mode=mode)
    stopped = pids_of(launcher, name)[-1]
    os.kill(stopped, signal.SIGSTOP)
    try:
        time.sleep(13.0)  # the timeout is 10 s
    finally:
        os.kill(stopped, signal.SIGCONT)
    require_each_record_once(launcher, tmp_path)
