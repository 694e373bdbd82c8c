"""Jobs of scripts written for Fluid, started by launch_ps or by environment variables alone."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

from tests.support.ports import free_ports

DEADLINE_S = 180.0


def environ(**changes: str) -> dict[str, str]:
    """Return the environment of a script: `python` is this one, since pipe commands call it by
    name.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", **changes}


def run(directory: Path, *words: str, **changes: str) -> str:
    """Return the output of `python words...`; if it fails, also the logs of the job's processes."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=directory,
        env=environ(**changes),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    logs = "".join(path.read_text() for path in sorted(directory.glob("logs/*")))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    return done.stdout


def launch(directory: Path, *words: str, **changes: str) -> str:
    """Return the log of the first worker of 2 servers and 2 workers."""
    ports = ",".join(f"127.0.0.1:{port}" for port in free_ports(2))
    launcher = ("-m", "sparsefleet.distributed.launch_ps", "--worker_num", "2")
    run(directory, *launcher, "--endpoints", ports, *words, **changes)
    return (directory / "logs" / "workerlog.0").read_text()


class PlainJob:
    """Start servers and trainers of one script, each with its own environment."""

    def __init__(self, directory: Path, *words: str) -> None:
        self._directory = directory
        self._words = words
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *more: str, **changes: str) -> None:
        with open(self._directory / f"{name}.log", "wb") as log:
            self._processes[name] = subprocess.Popen(
                [sys.executable, *self._words, *more],
                cwd=self._directory,
                env=environ(**changes),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def wait(self, name: str) -> str:
        """Return the output, after a successful exit."""
        code = self._processes[name].wait(DEADLINE_S)
        assert code == 0, "".join(f"{one}:\n{self.log(one)}" for one in self._processes)
        return self.log(name)

    def log(self, name: str) -> str:
        return (self._directory / f"{name}.log").read_text()

    def close(self) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()


def write_clicks(path: Path, count: int) -> None:
    """Write lines like Criteo's: label, 13 counts, 26 strings; the first ones decide the click."""
    draw = random.Random(5)
    lines = []
    for _ in range(count):
        texts = [draw.randrange(20) for _ in range(26)]
        clicked = draw.random() < (0.9 if sum(texts[:3]) % 2 else 0.1)
        counts = [str(draw.randrange(50)) if draw.random() > 0.1 else "" for _ in range(13)]
        lines.append("\t".join([str(int(clicked)), *counts, *(f"{text:08x}" for text in texts)]))
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
