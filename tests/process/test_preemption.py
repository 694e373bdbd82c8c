"""A job that is asked to end saves its state, and resumes where it was when it is restarted."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.launch_process import LaunchProcess, wait_until

Start = Callable[..., LaunchProcess]
BATCHES = 60
RECORDS = 2 * BATCHES * 32


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[LaunchProcess] = []

    def begin(*words: str, door: str = "torch", mode: str = "async") -> LaunchProcess:
        job = ("--servers", "2", "--workers", "2", "--env", "OMP_NUM_THREADS=1", *words)
        ledger = ("--api", door, "--mode", mode, "--out", str(tmp_path))
        size = ("--batches", str(BATCHES), "--pace-ms", "30")
        saves = ("--checkpoints", str(tmp_path / "saves")) if "off" in words else ()
        started.append(
            LaunchProcess(tmp_path, *job, "-m", "sparsefleet.cli.ledger", *ledger, *size, *saves)
        )
        return started[-1]

    yield begin
    for launcher in started:
        launcher.close()


def preempt(launcher: LaunchProcess, directory: Path) -> None:
    """End the job once all workers train, and expect that it can resume elsewhere."""
    begun = [directory / f"begun-{rank}" for rank in range(2)]
    wait_until(lambda: all(path.exists() for path in begun), "all workers train")
    launcher.send(signal.SIGTERM)
    assert launcher.wait() == 75, launcher.output() + launcher.log("workerlog.0")
    assert "start the job elsewhere" in launcher.output()
    assert "had to be killed" not in launcher.output()
    for rank in range(2):
        assert "hands over" in launcher.log(f"workerlog.{rank}")
    assert not (directory / "ledger.json").exists()
    launcher.wait_for_no_child()
    for path in begun:
        path.unlink()


def require_each_record_once(launcher: LaunchProcess, directory: Path) -> None:
    assert launcher.wait() == 0, launcher.output() + launcher.log("workerlog.0")
    found = json.loads((directory / "ledger.json").read_text())
    assert (found["records"], found["missing"], found["repeated"]) == (RECORDS, 0, 0), found


@pytest.mark.job
@pytest.mark.parametrize(
    ("door", "mode"),
    [
        ("torch", "sync"),
        ("torch", "half_async"),
        ("torch", "async"),
        ("torch", "hybrid"),
        ("torch", "geo"),
        ("fluid", "async"),
        ("fluid", "sync"),
    ],
)
def test_job_continues_from_the_state_of_its_servers(
    start: Start, tmp_path: Path, door: str, mode: str
) -> None:
    state = tmp_path / "state"
    for _ in range(2):
        preempt(start("--state-dir", str(state), door=door, mode=mode), tmp_path)
        assert (state / "job.json").exists()
    last = start("--state-dir", str(state), door=door, mode=mode)
    require_each_record_once(last, tmp_path)
    assert "continuing job" in last.output()
    assert [path.name for path in state.iterdir()] == ["lock"]


@pytest.mark.job
@pytest.mark.parametrize("mode", ["sync", "half_async", "async", "hybrid", "geo"])
def test_job_continues_from_a_checkpoint(start: Start, tmp_path: Path, mode: str) -> None:
    preempt(start("--durability", "off", mode=mode), tmp_path)
    require_each_record_once(start("--durability", "off", mode=mode), tmp_path)


def test_state_of_another_kind_of_job_is_refused(tmp_path: Path, start: Start) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / "job.json").write_text(json.dumps({"job": "3f", "shape": {"servers": 9}}))
    launcher = start("--state-dir", str(state))
    assert launcher.wait() != 0
    assert "use the same numbers or a different directory" in launcher.output()
    (state / "job.json").unlink()
    (state / "novel.txt").touch()
    launcher = start("--state-dir", str(state))
    assert launcher.wait() != 0
    assert "contains 'novel.txt' but no job.json" in launcher.output()
