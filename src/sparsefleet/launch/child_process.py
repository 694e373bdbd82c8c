"""One server or worker as the launcher sees it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from enum import Enum
from pathlib import Path

from sparsefleet.launch import _child
from sparsefleet.launch.guard import Guard
from sparsefleet.launch.job_plan import ProcessPlan
from sparsefleet.launch.log_tail import LogTail

__all__ = ["ChildProcess", "ChildState", "describe_exit", "shell_code"]

_REAP_S = 10.0


class ChildState(Enum):
    """What a person is told of a process."""

    RUNNING = "running"
    STOPPING = "stopping"
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"


class ChildProcess:
    """Started by the constructor, in a process group of its own which ends as a whole."""

    def __init__(self, plan: ProcessPlan, environ: Mapping[str, str], guard: Guard) -> None:
        self.plan = plan
        self.state = ChildState.RUNNING
        self.exit_code: int | None = None
        """As subprocess has it: negative for a signal. None while it runs."""
        self.log = LogTail(plan.log_path, is_continued=plan.appends_log)
        self._guard = guard
        self._process = _start(plan, environ, guard)

    @property
    def name(self) -> str:
        return self.plan.name

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self.exit_code is None

    def poll(self) -> bool:
        """True once: when it is seen to have ended. Ends what it left of its group."""
        if self.exit_code is not None or self._process.poll() is None:
            return False
        self._close(self._process.returncode)
        return True

    def terminate(self) -> None:
        """Asks it to end. Its own children are its business until it has ended."""
        if self.is_running:
            self.state = ChildState.STOPPING
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Ends it and its group at once; returns when it is gone."""
        if not self.is_running:
            return
        self.state = ChildState.STOPPING
        self._kill_group()
        try:
            self._close(self._process.wait(_REAP_S))
        except subprocess.TimeoutExpired:  # it waits for a device, and ends when that answers
            self._close(-signal.SIGKILL)

    def _close(self, code: int) -> None:
        self._kill_group()
        self._guard.remove(self.pid)
        self.exit_code = code
        if self.state is ChildState.STOPPING:
            self.state = ChildState.STOPPED
        else:
            self.state = ChildState.DONE if code == 0 else ChildState.FAILED

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


def describe_exit(code: int) -> str:
    """How a process ended, in words.

    >>> describe_exit(3), describe_exit(-9)
    ('ended with code 3', 'was killed by SIGKILL')
    """
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def shell_code(code: int) -> int:
    """The exit code by which a launcher hands on another's, as shells do.

    >>> shell_code(3), shell_code(-9)
    (3, 137)
    """
    return code if code >= 0 else 128 - code


def _start(plan: ProcessPlan, environ: Mapping[str, str], guard: Guard) -> subprocess.Popen[bytes]:
    """Starts it so that it ends with the launcher from its first moment on.

    It waits for a byte before it becomes its command. The byte is sent once the guard knows
    of it; a launcher killed before that closes the pipe, and the child ends.
    """
    child = str(Path(_child.__file__).resolve())
    go_read, go_write = os.pipe()
    try:
        with open(plan.log_path, "ab" if plan.appends_log else "wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", child, str(go_read), str(os.getpid()), *plan.command],
                stdin=subprocess.DEVNULL,
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
