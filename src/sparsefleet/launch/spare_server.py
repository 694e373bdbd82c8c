"""A process that has already imported what a server needs, so that a successor starts quickly."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping

from sparsefleet.launch.child_process import start_process
from sparsefleet.launch.guard import Guard
from sparsefleet.launch.job_plan import ProcessPlan

__all__ = ["SpareServer"]

_PAUSE_S = 1.0  # so that a new spare does not compete with a successor that is still starting
_END_S = 5.0


class SpareServer:
    """Keeps one process ready to become the successor of a durable server on this node.

    Restarting a small server takes mostly import time, and the spare has already imported
    everything. It uses about 45 MB of memory.
    """

    def __init__(
        self, environment: Callable[[ProcessPlan], Mapping[str, str]], guard: Guard
    ) -> None:
        self._environment = environment
        self._guard = guard
        self._process: subprocess.Popen[bytes] | None = None
        self._earliest = time.monotonic()

    def keep_ready(self) -> None:
        """Start a spare if there is none; return at once."""
        if self._process is not None or time.monotonic() < self._earliest:
            return
        plan = ProcessPlan(
            role="server",
            index=0,
            command=(sys.executable, "-u", "-m", "sparsefleet", "server", "--spare"),
            log_path=os.devnull,
        )
        self._process = start_process(
            plan, self._environment(plan), self._guard, stdin=subprocess.PIPE
        )

    def take(self, plan: ProcessPlan, log_dir: str) -> subprocess.Popen[bytes] | None:
        """Return a process that runs `plan` on the log directory, or None if there is no spare."""
        process, self._process = self._process, None
        self._earliest = time.monotonic() + _PAUSE_S
        if process is None:
            return None
        order = {"recover": log_dir, "log": os.path.abspath(plan.log_path)}
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(order).encode() + b"\n")
            process.stdin.close()
        except OSError:  # the spare has exited
            self._reap(process)
            return None
        return process

    def close(self) -> None:
        """Stop the spare."""
        if self._process is not None:
            assert self._process.stdin is not None
            with contextlib.suppress(OSError):
                self._process.stdin.close()
            self._reap(self._process)
            self._process = None

    def _reap(self, process: subprocess.Popen[bytes]) -> None:
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._guard.remove(process.pid)
