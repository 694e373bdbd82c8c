"""A server or worker process as the launcher sees it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from enum import Enum
from pathlib import Path

from sparsefleet.launch import _child
from sparsefleet.launch.guard import Guard
from sparsefleet.launch.job_plan import ProcessPlan
from sparsefleet.launch.log_tail import LogTail

__all__ = ["ChildProcess", "ChildState", "describe_exit", "shell_code", "start_process"]

_REAP_S = 10.0


class ChildState(Enum):
    """The state of a process as shown to the user."""

    RUNNING = "running"
    STOPPING = "stopping"
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"


class ChildProcess:
    """A process that runs in its own process group, which is always stopped as a whole.

    The constructor starts the process, unless it is given a process that `start_process` started.
    """

    def __init__(
        self,
        plan: ProcessPlan,
        environ: Mapping[str, str],
        guard: Guard,
        process: subprocess.Popen[bytes] | None = None,
    ) -> None:
        self.plan = plan
        self.state = ChildState.RUNNING
        self.exit_code: int | None = None
        """The exit code, negative for a signal as in subprocess, or None while the process runs."""
        self.ended_at: float | None = None
        """When the launcher noticed the end of the process, in seconds since 1970."""
        self.log = LogTail(plan.log_path, is_continued=plan.appends_log)
        self._guard = guard
        self._began = time.monotonic()
        self._lived_s: float | None = None
        self._process = process or start_process(plan, environ, guard)

    @property
    def name(self) -> str:
        return self.plan.name

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def lived_s(self) -> float:
        """Return the number of seconds from the start of the process to its end, or until now."""
        return time.monotonic() - self._began if self._lived_s is None else self._lived_s

    @property
    def is_running(self) -> bool:
        return self.exit_code is None

    def poll(self) -> bool:
        """Return True once, on the first call after the process has exited. Kills the rest of its
        group.
        """
        if self.exit_code is not None or self._process.poll() is None:
            return False
        self._close(self._process.returncode)
        return True

    def terminate(self) -> None:
        """Send SIGTERM. The process must then stop its own children."""
        if self.is_running:
            self.state = ChildState.STOPPING
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process and its group; return when all have exited."""
        if not self.is_running:
            return
        self.state = ChildState.STOPPING
        self._kill_group()
        try:
            self._close(self._process.wait(_REAP_S))
        except subprocess.TimeoutExpired:  # blocked on a device; ends when the device answers
            self._close(-signal.SIGKILL)

    def _close(self, code: int) -> None:
        self._kill_group()
        self._guard.remove(self.pid)
        self.exit_code = code
        self.ended_at = time.time()
        self._lived_s = time.monotonic() - self._began
        if self.state is ChildState.STOPPING:
            self.state = ChildState.STOPPED
        else:
            self.state = ChildState.DONE if code == 0 else ChildState.FAILED

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


def describe_exit(code: int) -> str:
    """Describe how a process exited.

    >>> describe_exit(3), describe_exit(-9)
    ('exited with code 3', 'was killed by SIGKILL')
    """
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def shell_code(code: int) -> int:
    """Return the exit code that reports how a child exited, following the convention of shells.

    >>> shell_code(3), shell_code(-9)
    (3, 137)
    """
    return code if code >= 0 else 128 - code


def start_process(
    plan: ProcessPlan,
    environ: Mapping[str, str],
    guard: Guard,
    *,
    stdin: int = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    """Start the process so that it can never outlive the launcher.

    The child waits for a byte before it executes its command. The byte is sent once the guard has
    registered the child; if the launcher is killed before then, the pipe closes and the child
    exits.
    """
    child = str(Path(_child.__file__).resolve())
    go_read, go_write = os.pipe()
    try:
        with open(plan.log_path, "ab" if plan.appends_log else "wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", child, str(go_read), str(os.getpid()), *plan.command],
                stdin=stdin,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(environ),
                pass_fds=(go_read,),
                start_new_session=True,
            )
        guard.add(process.pid)
        os.write(go_write, b"g")
    finally:
        os.close(go_read)
        os.close(go_write)
    return process
