"""A job's processes on this node, for one start of the job."""

from __future__ import annotations

import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from sparsefleet.launch.child_process import (
    ChildProcess,
    ChildState,
    EndingSignals,
    Guard,
    LogFollower,
    SpareServer,
    describe_exit,
    log_size,
    shell_code,
)
from sparsefleet.launch.failure_cause import describe_failure, find_cause
from sparsefleet.launch.job_plan import (
    ProcessPlan,
    has_own_loop,
    has_served,
    is_replaceable,
    listens_since,
    plan_again,
    state_of,
)
from sparsefleet.launch.launch_config import LaunchConfig
from sparsefleet.launch.node_link import AllDone, LinkEvent, NodeLink, OtherNodeFailed, Restart
from sparsefleet.launch.restarts import START_ELSEWHERE, LostWorkers, RestartPolicy, RestartWatch
from sparsefleet.launch.status_display import JobDisplay
from sparsefleet.store.own_loop import left_out

__all__ = ["Ending", "JobContext", "JobObserver", "NodeJob"]

_REFRESH_S = 0.25
_TAIL_LINES = 20
_CAUSE_S = 5.0  # how long after a secondary failure the primary one may still be noticed
_BY_SIGTERM = 128 + signal.SIGTERM
_OK_AFTER_SIGTERM = (0, -15, 143)


@dataclass(frozen=True, slots=True)
class Ending:
    """How and why the job ended on this node."""

    exit_code: int
    reason: str
    culprit: ChildProcess | None = None
    followed: tuple[str, ...] = field(default=(), kw_only=True)
    """Lines about processes that failed because of the culprit."""
    is_ours: bool = True
    """Whether this node ended the job, rather than a different node."""
    restarts: int = 0
    """The number of the upcoming restart, or 0 if the job has ended."""


class JobObserver:
    """An observer of the processes on this node. The base class ignores all notifications."""

    def started(self, plan: ProcessPlan, pid: int) -> None:
        """Handle the start of a process, whether it is the first start or a restart."""

    def ended(self, plan: ProcessPlan, pid: int, exit_code: int) -> None:
        """Handle the end of a process. The exit code follows the convention of `subprocess`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobContext:
    """The launcher's objects and settings that one start of the job uses."""

    config: LaunchConfig
    signals: EndingSignals
    display: JobDisplay
    guard: Guard
    link: NodeLink | None
    lost_workers: LostWorkers
    observer: JobObserver
    spare: SpareServer
    environment: Callable[[ProcessPlan], Mapping[str, str]]
    """A function that returns the environment of a process."""
    state_dir: str = ""
    """The directory of the servers' logs; empty if they are not durable."""
    ranks_dir: str = ""
    """Where ranks of a collective job declare that they are replaceable; "" if none can be."""
    notice_file: str = ""
    """If this file exists, a worker treats SIGTERM as advance notice of the end."""
    restarts: int = 0
    """How many times all processes have been restarted."""


class NodeJob:
    """Runs this node's processes for one start of the job."""

    def __init__(self, context: JobContext) -> None:
        self._context = context
        self._config = context.config
        self._signals = context.signals
        self._display = context.display
        self._link = context.link
        self._restarts = context.restarts
        self._policy = RestartPolicy(context.config)
        self._children: list[ChildProcess] = []
        self._shown: list[LogFollower] = []
        self._failures: list[ChildProcess] = []
        self._unjudged: list[ChildProcess] = []
        self._refusals: dict[ChildProcess, str] = {}
        self._restarted: Counter[str] = Counter()
        self._reported_done = False
        self._watch_of_restarts = RestartWatch(
            context.state_dir,
            context.lost_workers,
            lambda child: listens_since(child.plan, context.state_dir),
        )

    def start(self, plan: ProcessPlan) -> None:
        if self._config.show in ("all", plan.short_name):
            place = log_size(plan.log_path) if plan.appends_log else 0
            self._shown.append(LogFollower(plan.log_path, place))
        child = self._start_process(plan)
        self._children.append(child)
        where = f" at {child.plan.endpoint}" if child.plan.endpoint else ""
        self._display.note(
            f"{child.name} started{where}, pid {child.pid}, log {child.plan.log_path}"
        )

    def _start_process(self, plan: ProcessPlan) -> ChildProcess:
        spare = None
        if plan.incarnation and has_served(plan, self._context.state_dir):
            place = state_of(plan, self._context.state_dir)
            spare = self._context.spare.take(plan, place)
        child = ChildProcess(plan, self._context.environment(plan), self._context.guard, spare)
        self._context.observer.started(plan, child.pid)
        return child

    def run(self) -> Ending:
        """Watch the processes until all have exited."""
        ending = self._watch()
        heeded = min(
            self._signals.count, 1
        )  # a second signal counts even while the first is still being reported
        is_allowed = self._restarts < self._config.max_starts_of_all
        may_restart = ending.culprit is not None and is_allowed
        if self._link is not None and ending.is_ours and ending.exit_code != 0:
            node = f"node {self._config.node_rank} ({self._config.nodes[self._config.node_rank]})"
            reason = f"{node}: {ending.reason}"
            if may_restart:
                self._link.report_crash(self._restarts, ending.exit_code, reason)
            else:
                self._link.report_failure(ending.exit_code, reason)
        if ending.exit_code != 0:
            self._complain(ending)
        is_notice = ending.exit_code == _BY_SIGTERM
        if is_notice:
            self._give_notice(heeded)
        self._stop_all(heeded)
        self._refresh()
        for shown in self._shown:
            self._display.show_output(shown.last_lines())
        if ending.exit_code == 0:
            return self._check_stopped_servers()
        if is_notice and self._has_handed_over():
            print(
                "sparsefleet launch: the job's state is saved; start the job elsewhere to continue",
                file=sys.stderr,
                flush=True,
            )
            return replace(ending, exit_code=START_ELSEWHERE)
        if may_restart and self._link is not None:
            return self._wait_for_verdict()
        if may_restart:
            return replace(ending, restarts=self._restarts + 1)
        return ending

    def _wait_for_verdict(self) -> Ending:
        """After losing a process on this node, wait for the decision that applies to all nodes."""
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
        """Kill all remaining processes."""
        for child in self._children:
            child.kill()

    def _watch(self) -> Ending:
        while True:
            for child in self._children:
                if child.poll():
                    self._note_end(child)
            if not self._signals.count:
                self._restart_failed()
            ending = self._decide()
            if ending is not None:
                return ending
            self._watch_of_restarts.look()
            self._refresh()
            self._keep_spare_ready()
            self._signals.wait(_REFRESH_S)

    def _keep_spare_ready(self) -> None:
        """Keep a spare server process ready while this node has servers that may be restarted.

        It is first started once these servers are serving.
        """
        servers = [child.plan for child in self._children if child.plan.role == "server"]
        serve = [has_served(plan, self._context.state_dir) for plan in servers]
        if self._config.restart_rule != "all" and serve and all(serve):
            self._context.spare.keep_ready()

    def _note_end(self, child: ChildProcess) -> None:
        assert child.exit_code is not None
        self._context.observer.ended(child.plan, child.pid, child.exit_code)
        if child.state is ChildState.FAILED:
            self._failures.append(child)
            self._unjudged.append(child)
        if child.state is not ChildState.STOPPED:
            self._display.note(f"{child.name} {describe_exit(child.exit_code)}")

    def _restart_failed(self) -> None:
        """Restart the processes that may restart alone; report the other workers as lost."""
        while self._unjudged:
            child = self._unjudged.pop(0)
            state_dir = self._context.state_dir
            verdict = self._policy.judge(
                child,
                has_served=has_served(child.plan, state_dir),
                has_own_loop=has_own_loop(child.plan, state_dir),
                is_replaceable=is_replaceable(child.plan, self._context.ranks_dir),
            )
            if verdict.restarts:
                self._failures.remove(child)
                self._start_again(child)
                continue
            self._refusals[child] = verdict.reason
            if child.plan.role == "worker" and self._config.keep_going:
                self._context.lost_workers.report(child.plan.index)

    def _start_again(self, ended: ChildProcess) -> None:
        plan = plan_again(ended.plan, self._context.state_dir)
        child = self._start_process(plan)
        self._children[self._children.index(ended)] = child
        self._restarted[child.name] += 1
        self._watch_of_restarts.restarted(child, self._restarted[child.name])
        what = describe_failure(ended, [])[0]
        print(
            f"sparsefleet launch: {what}; restarted alone, pid {child.pid} "
            f"(restart {self._restarted[child.name]} of this process)",
            file=sys.stderr,
            flush=True,
        )

    def _decide(self) -> Ending | None:
        """Return why the job ends, or None if it continues."""
        if self._signals.first is not None:
            return _by_signal(self._signals.first)
        for child in self._failures:
            if not (self._config.keep_going and child.plan.role == "worker"):
                return self._explain(child)
        ending = self._hear_all()
        if ending is not None:
            return ending
        if any(child.is_running for child in self._children if child.plan.role == "worker"):
            return None
        return self._workers_ended()

    def _explain(self, first: ChildProcess) -> Ending:
        """Find out what made the job fail; `first` is the first process to fail on this node.

        A process that lost its peer may exit before the peer itself does, so wait a little.
        """
        deadline = time.monotonic() + min(_CAUSE_S, self._config.grace_s)
        while True:
            running = [child for child in self._children if child.is_running]
            cause = find_cause(self._failures, running)
            ending = self._hear_all() if cause is None else None
            if ending is not None and ending.exit_code != 0:
                return ending
            if cause is not None or self._signals.first or time.monotonic() > deadline:
                break
            self._signals.wait(_REFRESH_S / 5)
            for child in running:
                if child.poll():
                    self._note_end(child)
        reason, *followed = describe_failure(cause or first, self._failures)
        refusal = self._refusals.get(cause or first)
        if refusal:
            reason += f"; not restarted: {refusal}"
        code = first.exit_code if cause is None or cause.is_running else cause.exit_code
        return Ending(shell_code(code or 1), reason, cause or first, followed=tuple(followed))

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
            return Ending(0, "all workers on all nodes are done")
        self._display.note(event.text)
        return None

    def _workers_ended(self) -> Ending | None:
        """Handle the end of this node's workers; with --keep-going, one success is enough."""
        workers = [child for child in self._children if child.plan.role == "worker"]
        if workers and all(child.state is ChildState.FAILED for child in workers):
            return self._explain(self._failures[0])
        if self._link is None:
            return Ending(0, "all workers are done")
        if not self._reported_done:
            self._reported_done = True
            self._display.note("all workers on this node are done; waiting for the other nodes")
            self._link.report_done(self._restarts)
        return None

    def _complain(self, ending: Ending) -> None:
        """Report on stderr what ended the job, with the last log lines of the failed process."""
        self._refresh()
        lines = [f"sparsefleet launch: {ending.reason}", *ending.followed]
        if ending.culprit is not None:
            log = ending.culprit.plan.log_path
            tail = ending.culprit.log.last_lines(_TAIL_LINES)
            lines += [f"last lines of {log}:", *(f"  | {line}" for line in tail)]
        lines += [f"left out: {text}" for text in left_out(self._context.state_dir)]
        running = sum(child.is_running for child in self._children)
        if running:
            lines.append(f"stopping the other processes on this node: {running}")
        print("\n".join(lines), file=sys.stderr, flush=True)

    def _give_notice(self, heeded: int) -> None:
        """Let workers hand over their state while the servers are still running.

        Because of the notice file, workers treat SIGTERM as advance notice, unlike the SIGTERM that
        stops a failed job.
        """
        Path(self._context.notice_file).touch()
        self._end([child for child in self._children if child.plan.role == "worker"], heeded)

    def _has_handed_over(self) -> bool:
        """Return whether the job can be continued elsewhere.

        If the servers' logs were kept, the job can be continued however the workers exited, unless
        a custom loop would start over.
        """
        workers = [child for child in self._children if child.plan.role == "worker"]
        if self._config.state_dir:
            state_dir = self._context.state_dir
            return not any(has_own_loop(child.plan, state_dir) for child in workers)
        codes = [child.exit_code for child in workers]
        return START_ELSEWHERE in codes and set(codes) <= {START_ELSEWHERE, 0}

    def _end(self, children: list[ChildProcess], heeded: int) -> None:
        """Send SIGTERM and wait until all processes have exited, up to the grace period."""
        for child in children:
            child.terminate()
        deadline = time.monotonic() + self._config.grace_s
        while any(child.is_running for child in children):
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0 or self._signals.count > heeded:
                break
            self._signals.wait(min(_REFRESH_S, remaining_s))
            for child in self._children:
                if child.poll():
                    self._note_end(child)
            self._refresh()

    def _stop_all(self, heeded: int) -> None:
        """Send SIGTERM, then SIGKILL after the grace period; another signal skips the wait."""
        self._end(self._children, heeded)
        stubborn = [child for child in self._children if child.is_running]
        for child in stubborn:
            child.kill()
            self._note_end(child)
        if stubborn:
            names = ", ".join(child.name for child in stubborn)
            self._display.note(f"had to be killed: {names}")

    def _check_stopped_servers(self) -> Ending:
        """Check that the servers shut down cleanly after all workers succeeded."""
        for child in self._children:
            code = child.exit_code
            if child.state is not ChildState.STOPPED or code in (*_OK_AFTER_SIGTERM, -9, None):
                continue
            ending = _failed(child, "while shutting down")
            self._complain(ending)
            return ending
        if self._restarted:
            counts = ", ".join(f"{name}: {n}" for name, n in sorted(self._restarted.items()))
            self._display.note(f"restarted alone: {counts}")
        lost = [f"{child.name} {describe_exit(child.exit_code or 0)}" for child in self._failures]
        if lost:
            print(
                f"sparsefleet launch: done, with losses: {'; '.join(lost)}",
                file=sys.stderr,
                flush=True,
            )
        unknown = [
            child for child in self._failures if has_own_loop(child.plan, self._context.state_dir)
        ]
        missing = left_out(self._context.state_dir)
        for text in missing:
            print(f"sparsefleet launch: left out: {text}", file=sys.stderr, flush=True)
        if unknown:
            names = ", ".join(child.name for child in unknown)
            print(
                f"sparsefleet launch: an unknown amount of data from {names} was left out, "
                "because a custom training loop cannot be continued",
                file=sys.stderr,
                flush=True,
            )
            return Ending(shell_code(unknown[0].exit_code or 1), "records were left out")
        if missing:
            return Ending(1, "records were left out")
        return Ending(0, "done")


def _failed(child: ChildProcess, when: str = "") -> Ending:
    assert child.exit_code is not None
    reason = f"{child.name} (pid {child.pid}) {describe_exit(child.exit_code)} {when}".rstrip()
    return Ending(shell_code(child.exit_code), reason, culprit=child)


def _by_signal(number: signal.Signals) -> Ending:
    return Ending(128 + number, f"launcher received {number.name}")
