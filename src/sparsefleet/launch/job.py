"""A job on this node, from its first process to its last."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass

from sparsefleet.job_key import find_job_key
from sparsefleet.launch.child_process import (
    ChildProcess,
    ChildState,
    describe_exit,
    shell_code,
)
from sparsefleet.launch.ending_signals import EndingSignals
from sparsefleet.launch.guard import Guard
from sparsefleet.launch.job_key_file import given_key, new_key_file
from sparsefleet.launch.job_plan import (
    child_environment,
    fixed_endpoints,
    link_port,
    plan_node,
)
from sparsefleet.launch.launch_config import LaunchConfig
from sparsefleet.launch.log_follower import LogFollower
from sparsefleet.launch.node_link import (
    AllDone,
    HubLink,
    LeafLink,
    LinkConfig,
    LinkEvent,
    NodeLink,
    OtherNodeFailed,
)
from sparsefleet.launch.ports import PortReservation
from sparsefleet.launch.status_display import StatusDisplay, make_display

__all__ = ["run_job"]

_REFRESH_S = 0.25
_TAIL_LINES = 20
_OK_AFTER_SIGTERM = (0, -15, 143)


@dataclass(frozen=True, slots=True)
class _Ending:
    """Why the job is over on this node."""

    exit_code: int
    reason: str
    culprit: ChildProcess | None = None
    is_ours: bool = True
    """False if another node said so."""


def run_job(config: LaunchConfig, environ: Mapping[str, str] | None = None) -> int:
    """Runs the job to its end; returns the exit code for the launcher.

    0 if all workers ended with 0; else the code of the process that failed first (128 + n for
    signal n); 128 + n if this launcher was told to end by signal n. No process of the job is
    left when it returns. Raises ConfigError if the job cannot be started. Main thread only.
    """
    environ = os.environ if environ is None else environ
    several = len(config.nodes) > 1
    has_key = given_key(environ, is_required=several)
    os.makedirs(config.log_dir, exist_ok=True)
    with contextlib.ExitStack() as stack:
        signals = stack.enter_context(EndingSignals())
        endpoints = _take_endpoints(config, stack.enter_context(PortReservation()))
        guard = stack.enter_context(Guard(config.grace_s))
        told: dict[str, str] = {}
        if not has_key:
            told["SPARSEFLEET_JOB_KEY_FILE"] = stack.enter_context(new_key_file())
            guard.remove_file(told["SPARSEFLEET_JOB_KEY_FILE"])
        link = _open_link(config, environ, signals) if several else None
        if link is not None:
            stack.callback(link.close)
        display = stack.enter_context(make_display(quiet=config.quiet, show=config.show))
        if told:
            display.note(f"job key in {told['SPARSEFLEET_JOB_KEY_FILE']}")
        job = _Job(config, signals, display, link)
        stack.callback(job.kill_all)
        for plan in plan_node(config, endpoints):
            if signals.count:
                break
            environment = child_environment(environ, config, told, plan)
            job.add(ChildProcess(plan, environment, guard))
        return job.run()


def _take_endpoints(config: LaunchConfig, ports: PortReservation) -> list[str]:
    """All servers' endpoints; those of this node are held until the job is over."""
    endpoints = fixed_endpoints(config)
    if not endpoints:
        return [f"127.0.0.1:{port}" for port in ports.take_free(config.num_servers)]
    for plan in plan_node(config, endpoints):
        if plan.role == "server":
            ports.take(plan.endpoint)
    return endpoints


def _open_link(
    config: LaunchConfig, environ: Mapping[str, str], signals: EndingSignals
) -> NodeLink:
    link = LinkConfig(
        nodes=config.nodes,
        rank=config.node_rank,
        port=link_port(config),
        key=find_job_key((), environ),
        shape=f"{config.num_servers} servers and {config.num_workers} workers on "
        f"{','.join(config.nodes)} from port {config.start_port}, {config.transport}",
        join_timeout_s=config.join_timeout_s,
    )
    kind = HubLink if config.node_rank == 0 else LeafLink
    return kind(link, signals.wake)


class _Job:
    """The processes of this node, and what becomes of them."""

    def __init__(
        self,
        config: LaunchConfig,
        signals: EndingSignals,
        display: StatusDisplay,
        link: NodeLink | None,
    ) -> None:
        self._config = config
        self._signals = signals
        self._display = display
        self._link = link
        self._children: list[ChildProcess] = []
        self._shown: LogFollower | None = None
        self._failures: list[ChildProcess] = []
        self._reported_done = False

    def add(self, child: ChildProcess) -> None:
        self._children.append(child)
        if child.plan.short_name == self._config.show:
            self._shown = LogFollower(child.plan.log_path)
        where = f" at {child.plan.endpoint}" if child.plan.endpoint else ""
        self._display.note(
            f"{child.name} started{where}, pid {child.pid}, log {child.plan.log_path}"
        )

    def run(self) -> int:
        """From here to the end of all processes; the exit code."""
        ending = self._watch()
        if self._link is not None and ending.is_ours and ending.exit_code != 0:
            node = f"node {self._config.node_rank} ({self._config.nodes[self._config.node_rank]})"
            self._link.report_failure(ending.exit_code, f"{node}: {ending.reason}")
        if ending.exit_code != 0:
            self._complain(ending)
        self._stop_all()
        self._refresh()
        if self._shown is not None:
            self._display.show_output(self._shown.last_lines())
        if ending.exit_code == 0:
            ending = self._check_stopped_servers()
        return ending.exit_code

    def _refresh(self) -> None:
        if self._shown is not None:
            self._display.show_output(self._shown.new_lines())
        self._display.refresh(self._children)

    def kill_all(self) -> None:
        """Leaves nothing, whatever has happened."""
        for child in self._children:
            child.kill()

    def _watch(self) -> _Ending:
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

    def _decide(self) -> _Ending | None:
        """The end of the job, if it has come."""
        if self._signals.first is not None:
            number = self._signals.first
            return _Ending(128 + number, f"launcher received {number.name}")
        for child in self._failures:
            if not (self._config.keep_going and child.plan.role == "worker"):
                return _failed(child)
        if self._link is not None:
            while (event := self._link.event()) is not None:
                ending = self._hear(event)
                if ending is not None:
                    return ending
        if any(child.is_running for child in self._children if child.plan.role == "worker"):
            return None
        return self._workers_ended()

    def _hear(self, event: LinkEvent) -> _Ending | None:
        if isinstance(event, OtherNodeFailed):
            return _Ending(event.exit_code, event.text, is_ours=False)
        if isinstance(event, AllDone):
            return _Ending(0, "all workers of all nodes are done")
        self._display.note(event.text)
        return None

    def _workers_ended(self) -> _Ending | None:
        """Nothing to wait for on this node; with --keep-going one good worker is enough."""
        workers = [child for child in self._children if child.plan.role == "worker"]
        if workers and all(child.state is ChildState.FAILED for child in workers):
            return _failed(self._failures[0])
        if self._link is None:
            return _Ending(0, "all workers are done")
        if not self._reported_done:
            self._reported_done = True
            self._display.note("all workers of this node are done; waiting for the other nodes")
            self._link.report_done()
        return None

    def _complain(self, ending: _Ending) -> None:
        """Tells on stderr what ended the job, with the last lines of who did."""
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

    def _stop_all(self) -> None:
        """SIGTERM, the time of grace, SIGKILL; a signal meanwhile cuts the grace short."""
        for child in self._children:
            child.terminate()
        signals_before = self._signals.count
        deadline = time.monotonic() + self._config.grace_s
        while any(child.is_running for child in self._children):
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0 or self._signals.count > signals_before:
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

    def _check_stopped_servers(self) -> _Ending:
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
        return _Ending(0, "done")


def _failed(child: ChildProcess, when: str = "") -> _Ending:
    assert child.exit_code is not None
    reason = f"{child.name} (pid {child.pid}) {describe_exit(child.exit_code)} {when}".rstrip()
    return _Ending(shell_code(child.exit_code), reason, culprit=child)
