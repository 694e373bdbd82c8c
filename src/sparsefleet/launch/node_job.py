"""The processes of a job on this node, from one start to their end."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from sparsefleet.launch.child_process import (
    ChildProcess,
    ChildState,
    describe_exit,
    shell_code,
)
from sparsefleet.launch.ending_signals import EndingSignals
from sparsefleet.launch.guard import Guard
from sparsefleet.launch.job_plan import ProcessPlan
from sparsefleet.launch.launch_config import LaunchConfig
from sparsefleet.launch.log_follower import LogFollower
from sparsefleet.launch.node_link import (
    AllDone,
    LinkEvent,
    NodeLink,
    OtherNodeFailed,
    Restart,
)
from sparsefleet.launch.status_display import StatusDisplay

__all__ = ["Ending", "NodeJob"]

_REFRESH_S = 0.25
_TAIL_LINES = 20
_OK_AFTER_SIGTERM = (0, -15, 143)


@dataclass(frozen=True, slots=True)
class Ending:
    """Why the job is over on this node."""

    exit_code: int
    reason: str
    culprit: ChildProcess | None = None
    is_ours: bool = True
    """False if another node said so."""
    restarts: int = 0
    """Not 0: not over, but to be started for that many-th time anew."""


class NodeJob:
    """The processes of this node from one start of the job on, and what becomes of them."""

    def __init__(
        self,
        config: LaunchConfig,
        signals: EndingSignals,
        display: StatusDisplay,
        link: NodeLink | None,
        *,
        restarts: int = 0,
    ) -> None:
        self._config = config
        self._signals = signals
        self._display = display
        self._link = link
        self._restarts = restarts
        self._children: list[ChildProcess] = []
        self._shown: list[LogFollower] = []
        self._failures: list[ChildProcess] = []
        self._reported_done = False

    def start(self, plan: ProcessPlan, environ: Mapping[str, str], guard: Guard) -> None:
        if self._config.show in ("all", plan.short_name):
            place = _size(plan.log_path) if plan.appends_log else 0
            self._shown.append(LogFollower(plan.log_path, place))
        child = ChildProcess(plan, environ, guard)
        self._children.append(child)
        where = f" at {child.plan.endpoint}" if child.plan.endpoint else ""
        self._display.note(
            f"{child.name} started{where}, pid {child.pid}, log {child.plan.log_path}"
        )

    def run(self) -> Ending:
        """From here to the end of all processes."""
        ending = self._watch()
        heeded = min(self._signals.count, 1)  # one more counts, also while this one is told of
        may_restart = ending.culprit is not None and self._restarts < self._config.max_restarts
        if self._link is not None and ending.is_ours and ending.exit_code != 0:
            node = f"node {self._config.node_rank} ({self._config.nodes[self._config.node_rank]})"
            reason = f"{node}: {ending.reason}"
            if may_restart:
                self._link.report_crash(self._restarts, ending.exit_code, reason)
            else:
                self._link.report_failure(ending.exit_code, reason)
        if ending.exit_code != 0:
            self._complain(ending)
        self._stop_all(heeded)
        self._refresh()
        for shown in self._shown:
            self._display.show_output(shown.last_lines())
        if ending.exit_code == 0:
            return self._check_stopped_servers()
        if may_restart and self._link is not None:
            return self._wait_for_verdict()
        if may_restart:
            return replace(ending, restarts=self._restarts + 1)
        return ending

    def _wait_for_verdict(self) -> Ending:
        """What all nodes are to do now that this one has lost a process."""
        while True:
            ending = self._hear_all()
            if self._signals.first is not None:
                ending = _by_signal(self._signals.first)
                assert self._link is not None
                self._link.report_failure(ending.exit_code, ending.reason)
            if ending is not None:
                return ending
            self._signals.wait(_REFRESH_S)

    def _refresh(self) -> None:
        for shown in self._shown:
            self._display.show_output(shown.new_lines())
        self._display.refresh(self._children)

    def kill_all(self) -> None:
        """Leaves nothing, whatever has happened."""
        for child in self._children:
            child.kill()

    def _watch(self) -> Ending:
        while True:
            for child in self._children:
                if child.poll():
                    self._note_end(child)
            ending = self._decide()
            if ending is not None:
                return ending
            self._refresh()
            self._signals.wait(_REFRESH_S)

    def _note_end(self, child: ChildProcess) -> None:
        assert child.exit_code is not None
        if child.state is ChildState.FAILED:
            self._failures.append(child)
        if child.state is not ChildState.STOPPED:
            self._display.note(f"{child.name} {describe_exit(child.exit_code)}")

    def _decide(self) -> Ending | None:
        """The end of the job, if it has come."""
        if self._signals.first is not None:
            return _by_signal(self._signals.first)
        for child in self._failures:
            if not (self._config.keep_going and child.plan.role == "worker"):
                return _failed(child)
        ending = self._hear_all()
        if ending is not None:
            return ending
        if any(child.is_running for child in self._children if child.plan.role == "worker"):
            return None
        return self._workers_ended()

    def _hear_all(self) -> Ending | None:
        while self._link is not None and (event := self._link.event()) is not None:
            ending = self._hear(event)
            if ending is not None:
                return ending
        return None

    def _hear(self, event: LinkEvent) -> Ending | None:
        if isinstance(event, OtherNodeFailed):
            return Ending(event.exit_code, event.text, is_ours=False)
        if isinstance(event, Restart):
            return Ending(1, event.text, is_ours=False, restarts=event.restarts)
        if isinstance(event, AllDone):
            return Ending(0, "all workers of all nodes are done")
        self._display.note(event.text)
        return None

    def _workers_ended(self) -> Ending | None:
        """Nothing to wait for on this node; with --keep-going one good worker is enough."""
        workers = [child for child in self._children if child.plan.role == "worker"]
        if workers and all(child.state is ChildState.FAILED for child in workers):
            return _failed(self._failures[0])
        if self._link is None:
            return Ending(0, "all workers are done")
        if not self._reported_done:
            self._reported_done = True
            self._display.note("all workers of this node are done; waiting for the other nodes")
            self._link.report_done(self._restarts)
        return None

    def _complain(self, ending: Ending) -> None:
        """Tells on stderr what ended this start of the job, with the last lines of who did."""
        self._refresh()
        lines = [f"sparsefleet launch: {ending.reason}"]
        if ending.culprit is not None:
            log = ending.culprit.plan.log_path
            tail = ending.culprit.log.last_lines(_TAIL_LINES)
            lines += [f"its last lines, from {log}:", *(f"  | {line}" for line in tail)]
        running = sum(child.is_running for child in self._children)
        if running:
            lines.append(f"processes of this node that are ended now: {running}")
        print("\n".join(lines), file=sys.stderr, flush=True)

    def _stop_all(self, heeded: int) -> None:
        """SIGTERM, the time of grace, SIGKILL; a signal beyond those heeded cuts it short."""
        for child in self._children:
            child.terminate()
        deadline = time.monotonic() + self._config.grace_s
        while any(child.is_running for child in self._children):
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0 or self._signals.count > heeded:
                break
            self._signals.wait(min(_REFRESH_S, remaining_s))
            for child in self._children:
                if child.poll():
                    self._note_end(child)
            self._refresh()
        stubborn = [child for child in self._children if child.is_running]
        for child in stubborn:
            child.kill()
            self._note_end(child)
        if stubborn:
            names = ", ".join(child.name for child in stubborn)
            self._display.note(f"had to be killed: {names}")

    def _check_stopped_servers(self) -> Ending:
        """All workers did well; so must the servers have on their way out."""
        for child in self._children:
            code = child.exit_code
            if child.state is not ChildState.STOPPED or code in (*_OK_AFTER_SIGTERM, -9, None):
                continue
            ending = _failed(child, "when it was to end")
            self._complain(ending)
            return ending
        lost = [f"{child.name} {describe_exit(child.exit_code or 0)}" for child in self._failures]
        if lost:
            print(
                f"sparsefleet launch: done, but without {'; '.join(lost)}",
                file=sys.stderr,
                flush=True,
            )
        return Ending(0, "done")


def _failed(child: ChildProcess, when: str = "") -> Ending:
    assert child.exit_code is not None
    reason = f"{child.name} (pid {child.pid}) {describe_exit(child.exit_code)} {when}".rstrip()
    return Ending(shell_code(child.exit_code), reason, culprit=child)


def _by_signal(number: signal.Signals) -> Ending:
    return Ending(128 + number, f"launcher received {number.name}")


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
