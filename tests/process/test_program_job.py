"""Fluid scripts as jobs of real processes, started by environment variables or a launcher."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.launch_process import LaunchProcess
from tests.support.ports import free_ports

SCRIPT = Path(__file__).with_name("program_script.py")
DEADLINE_S = 240.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write the files of two workers: examples with three ids; low ids are clicked."""
    draw = random.Random(1)
    for name in ("part-0-0", "part-0-1", "part-1-0", "part-1-1", "part-test"):
        lines = []
        for _ in range(150):
            ids = [draw.randrange(100) for _ in range(3)]
            lines.append(f"3 {' '.join(map(str, ids))} 1 {int(sum(ids) < 150)}\n")
        (tmp_path / name).write_text("".join(lines))
    return tmp_path


class Job:
    """Two servers and two workers that get their roles from Paddle's variables alone."""

    def __init__(self, folder: Path, *words: str) -> None:
        ports = free_ports(2)
        shared = {
            "PADDLE_PSERVERS_IP_PORT_LIST": ",".join(f"127.0.0.1:{port}" for port in ports),
            "PADDLE_TRAINERS_NUM": "2",
            "POD_IP": "127.0.0.1",
        }
        roles = [{"TRAINING_ROLE": "PSERVER", "PADDLE_PORT": str(port)} for port in ports]
        roles += [{"TRAINING_ROLE": "TRAINER", "PADDLE_TRAINER_ID": str(i)} for i in range(2)]
        self.logs = [folder / f"process-{number}.log" for number in range(4)]
        self.processes = []
        for role, log in zip(roles, self.logs, strict=True):
            with open(log, "wb") as out:
                self.processes.append(
                    subprocess.Popen(
                        [sys.executable, str(SCRIPT), *words],
                        cwd=folder,
                        env={**os.environ, **shared, **role},
                        stdin=subprocess.DEVNULL,
                        stdout=out,
                        stderr=subprocess.STDOUT,
                    )
                )

    def wait(self) -> str:
        """Return the output of the workers; end the servers with SIGTERM and check their exit
        codes.
        """
        for process in self.processes[2:]:
            process.wait(DEADLINE_S)
        for process in self.processes[:2]:
            process.send_signal(signal.SIGTERM)
        codes = [process.wait(DEADLINE_S) for process in self.processes]
        texts = [log.read_text() for log in self.logs]
        assert codes == [0, 0, 0, 0], "\n".join(texts)
        return "".join(texts[2:])

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()


@pytest.fixture
def jobs() -> Iterator[list[Job]]:
    started: list[Job] = []
    yield started
    for job in started:
        job.close()


def aucs(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"worker \d: auc ([0-9.]+)", text)]


def test_workers_started_by_variables_alone_learn_and_save(folder: Path, jobs: list[Job]) -> None:
    jobs.append(Job(folder, "async", "saved"))
    found = aucs(jobs[0].wait())
    assert len(found) == 2
    assert min(found) > 0.85
    names = {path.name for path in (folder / "saved").iterdir()}
    assert {"embedding_0.w_0", "fc_0.w_0", "fc_0.w_0_moment1_0", "learning_rate_0"} <= names


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sync", "transpiler"])
def test_a_job_resumes_from_the_files_of_another(mode: str, folder: Path, jobs: list[Job]) -> None:
    jobs.append(Job(folder, mode, "first"))
    assert min(aucs(jobs[0].wait())) > 0.85
    jobs.append(Job(folder, mode, "second", "first"))
    assert min(aucs(jobs[1].wait())) > 0.85, "one pass would not do, without the passes before"


@pytest.mark.slow
def test_launch_ps_runs_a_fluid_script(folder: Path) -> None:
    launcher = LaunchProcess(
        folder,
        "--start_port",
        "0",
        str(SCRIPT),
        "half_async",
        "saved",
        command=("-m", "sparsefleet.distributed.launch_ps"),
    )
    try:
        assert launcher.process.wait(DEADLINE_S) == 0, launcher.output()
        found = aucs(launcher.log("workerlog.0") + launcher.log("workerlog.1"))
        assert len(found) == 2
        assert min(found) > 0.8
    finally:
        launcher.close()
