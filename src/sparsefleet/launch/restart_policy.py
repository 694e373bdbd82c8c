"""Decide which processes of a job are restarted alone, and how often."""

from __future__ import annotations

import os
import time
from collections import defaultdict, deque
from collections.abc import Callable
from typing import NamedTuple

from sparsefleet.launch.child_process import ChildProcess
from sparsefleet.launch.launch_config import LaunchConfig

__all__ = ["RestartPolicy", "Verdict"]

START_ELSEWHERE = os.EX_TEMPFAIL
"""The exit code (75) of a process that handed over its work on request."""

WINDOW_S = 300.0
_AT_ONCE_S = 10.0
_MOST_IN_A_ROW = 3
_KILLED = (-9, -15)  # sent from outside, so the process itself may be fine


class Verdict(NamedTuple):
    """The decision on whether a failed process is restarted alone."""

    restarts: bool
    reason: str = ""
    """Why a process that would normally be restarted is not restarted."""


class RestartPolicy:
    """Decides whether failed processes are restarted, within the limit set in `config`.

    A server that has served is restarted however it failed, because its log contains everything
    that it acknowledged. Other processes are restarted if they were killed by a signal. After an
    error they are restarted only with `restart="failed"`, since the same script usually fails in
    the same way again, and a worker that was able to clean up has closed its session.
    """

    def __init__(
        self, config: LaunchConfig, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._config = config
        self._clock = clock
        self._restarts: defaultdict[str, deque[float]] = defaultdict(deque)
        self._in_a_row: defaultdict[str, int] = defaultdict(int)

    def judge(
        self,
        child: ChildProcess,
        *,
        has_served: bool = False,
        has_own_loop: bool = False,
        is_replaceable: bool = False,
    ) -> Verdict:
        """Return whether to restart a failed process. If so, the restart is counted.

        has_served: whether it is a server that was listening. has_own_loop: whether it is a worker
        whose successor would train on the same data again. is_replaceable: whether it is a rank of
        a collective job whose replacement the others can wait for.
        """
        is_covered = is_replaceable and (child.exit_code or 0) < 0
        if not is_covered and not self._covers(child, has_served=has_served):
            return Verdict(False)
        if has_own_loop and self._config.restart == "auto":
            return Verdict(
                False,
                "it trains in a custom loop (fleet.step, Executor.run, RemoteStore), which a "
                "new process would start from the beginning; if that is acceptable, use "
                f"--restart {self._config.restart_rule}",
            )
        name = child.name
        is_own_fault = child.exit_code not in _KILLED and child.lived_s < _AT_ONCE_S
        self._in_a_row[name] = self._in_a_row[name] + 1 if is_own_fault else 0
        if self._in_a_row[name] >= _MOST_IN_A_ROW:
            return Verdict(
                False,
                f"it failed {_MOST_IN_A_ROW} times in a row within {_AT_ONCE_S:g} s of its start",
            )
        now = self._clock()
        restarts = self._restarts[name]
        while restarts and now - restarts[0] > WINDOW_S:
            restarts.popleft()
        if self._config.restart_limit == 0:
            return Verdict(False)
        if len(restarts) >= self._config.restart_limit:
            return Verdict(
                False,
                f"it was restarted {len(restarts)} times within {WINDOW_S:g} s, which is the "
                "limit set by --max-restarts",
            )
        restarts.append(now)
        return Verdict(True)

    def _covers(self, child: ChildProcess, *, has_served: bool) -> bool:
        rule = self._config.restart_rule
        if rule == "all" or child.exit_code is None:
            return False
        return has_served or child.exit_code < 0 or rule == "failed"
