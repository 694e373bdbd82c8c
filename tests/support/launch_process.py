"""Runs `sparsefleet launch` in a separate process, and reads what it leaves behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

DEADLINE_S = 240.0  # generous, for a loaded machine
_LOOK_S = 0.02


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Wait for the condition; raise TimeoutError with `what` if it does not become true."""
    end = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"after {DEADLINE_S} s: not {what}")
        time.sleep(_LOOK_S)


def is_alive(pid: int) -> bool:
    """Return whether the process runs; False for one that has ended, reaped or not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return sys.platform != "linux"
    return text.rpartition(")")[2].split()[0] not in ("Z", "X")


class LaunchProcess:
    """Started by the constructor in `directory`. Children report themselves in files there.

    A script of a test writes its pid to `pids/<anything>`; so the test knows what must be gone.
    """

    def __init__(
        self,
        directory: Path,
        *words: str,
        command: tuple[str, ...] = (),
        prefix: tuple[str, ...] = (),
    ) -> None:
        self.directory = directory
        (directory / "pids").mkdir(exist_ok=True)
        start = command or ("-m", "sparsefleet", "launch")
        self._out = open(directory / f"launch-{len(os.listdir(directory))}.out", "w+b")  # noqa: SIM115
        self.process = subprocess.Popen(
            [*prefix, sys.executable, *start, *words],
            cwd=directory,
            env={
                **os.environ,
                "TMPDIR": str(directory),
            },  # a killed guard leaves the key file there
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=subprocess.STDOUT,
        )

    def output(self) -> str:
        """Return stdout and stderr so far."""
        self._out.seek(0)
        return self._out.read().decode()

    def log(self, name: str) -> str:
        return (self.directory / "logs" / name).read_text()

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        """Return the launcher's exit code."""
        try:
            return self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"launcher still runs: {self.output()}") from None

    def pids(self) -> dict[str, int]:
        """Return the pids of all processes that have reported in."""
        found = {}
        for path in (self.directory / "pids").iterdir():
            text = path.read_text()
            if text.endswith("\n"):
                found[path.name] = int(text)
        return found

    def wait_for_pids(self, count: int) -> dict[str, int]:
        wait_until(
            lambda: len(self.pids()) >= count or self.process.poll() is not None,
            f"{count} processes",
        )
        found = self.pids()
        assert len(found) >= count, self.output()
        return found

    def wait_for_no_child(self) -> None:
        for name, pid in self.pids().items():
            wait_until(lambda pid=pid: not is_alive(pid), f"ended: {name}, pid {pid}")

    def close(self) -> None:
        """End everything that is still running."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(DEADLINE_S)
        for pid in self.pids().values():
            with contextlib.suppress(ProcessLookupError):
                if is_alive(pid):
                    os.kill(pid, signal.SIGKILL)
        self._out.close()


def kill_stopped_worker(job: LaunchProcess, directory: Path) -> None:
    """Kill the worker that leaves its pid in `stopped` and waits; the job must fail."""
    try:
        wait_until((directory / "stopped").exists, "a worker has stopped")
        os.kill(int((directory / "stopped").read_text()), signal.SIGKILL)
        assert job.wait() != 0
    finally:
        job.close()


def log_of_success(job: LaunchProcess) -> str:
    """Wait for the job to succeed; return the log of worker 0."""
    try:
        assert job.wait() == 0, job.output() + job.log("workerlog.0")
        return job.log("workerlog.0")
    finally:
        job.close()
