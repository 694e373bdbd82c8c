"""A job on this node, from its first process to its last."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Mapping

from sparsefleet.job_key import find_job_key
from sparsefleet.launch.ending_signals import EndingSignals
from sparsefleet.launch.guard import Guard
from sparsefleet.launch.hub_link import HubLink
from sparsefleet.launch.job_key_file import given_key, new_key_file
from sparsefleet.launch.job_plan import (
    child_environment,
    fixed_endpoints,
    fixed_meeting_point,
    link_port,
    plan_node,
)
from sparsefleet.launch.launch_config import LaunchConfig
from sparsefleet.launch.leaf_link import LeafLink
from sparsefleet.launch.node_job import Ending, NodeJob
from sparsefleet.launch.node_link import LinkConfig, NodeLink
from sparsefleet.launch.ports import PortReservation
from sparsefleet.launch.status_display import make_display

__all__ = ["run_job"]


def run_job(config: LaunchConfig, environ: Mapping[str, str] | None = None) -> int:
    """Runs the job to its end; returns the exit code for the launcher.

    After a failure it is started anew as often as `max_restarts` says. 0 if all workers ended
    with 0 in the end; else the code of the process that failed first (128 + n for
    signal n); 128 + n if this launcher was told to end by signal n. No process of the job is
    left when it returns. Raises ConfigError if the job cannot be started. Main thread only.
    """
    environ = os.environ if environ is None else environ
    several = len(config.nodes) > 1
    has_key = given_key(environ, is_required=several and config.paddle is None)
    os.makedirs(config.log_dir, exist_ok=True)
    with contextlib.ExitStack() as stack:
        signals = stack.enter_context(EndingSignals())
        ports = stack.enter_context(PortReservation())
        endpoints = _take_endpoints(config, ports)
        meeting_point = _take_meeting_point(config, ports)
        guard = stack.enter_context(Guard(config.grace_s))
        told: dict[str, str] = {}
        if not has_key:
            told["SPARSEFLEET_JOB_KEY_FILE"] = stack.enter_context(new_key_file())
            guard.remove_file(told["SPARSEFLEET_JOB_KEY_FILE"])
        # Nodes of Paddle's launcher know nothing of each other, unless they have a key in common.
        link = _open_link(config, environ, signals) if several and has_key else None
        if link is not None:
            stack.callback(link.close)
        display = stack.enter_context(make_display(quiet=config.quiet, show=config.show))
        for path in told.values():
            display.note(f"job key in {path}")

        def run_once(restarts: int) -> Ending:
            job = NodeJob(config, signals, display, link, restarts=restarts)
            try:
                for plan in plan_node(config, endpoints, meeting_point, restarts):
                    if signals.count:
                        break
                    job.start(plan, child_environment(environ, config, told, plan), guard)
                return job.run()
            finally:
                job.kill_all()

        return _run_to_the_end(run_once, config.max_restarts)


def _run_to_the_end(run_once: Callable[[int], Ending], max_restarts: int) -> int:
    ending = run_once(0)
    while ending.restarts:
        print(
            f"sparsefleet launch: restart {ending.restarts} of {max_restarts}: all processes of "
            "the job are started anew",
            file=sys.stderr,
            flush=True,
        )
        ending = run_once(ending.restarts)
    return ending.exit_code


def _take_endpoints(config: LaunchConfig, ports: PortReservation) -> list[str]:
    """All servers' endpoints; those of this node are held until the job is over."""
    endpoints = fixed_endpoints(config)
    if not endpoints:
        return [f"127.0.0.1:{port}" for port in ports.take_free(config.num_servers)]
    for plan in plan_node(config, endpoints):
        if plan.role == "server":
            ports.take(plan.endpoint)
    return endpoints


def _take_meeting_point(config: LaunchConfig, ports: PortReservation) -> str:
    """Where workers meet. On one machine the port is held; of several, they may never need it."""
    fixed = fixed_meeting_point(config)
    if not fixed:
        return f"127.0.0.1:{ports.take_free(1)[0]}"
    if not config.nodes:
        ports.take(fixed)
    return fixed


def _open_link(
    config: LaunchConfig, environ: Mapping[str, str], signals: EndingSignals
) -> NodeLink:
    link = LinkConfig(
        nodes=config.nodes,
        rank=config.node_rank,
        port=link_port(config),
        key=find_job_key((), environ),
        shape=f"{config.num_servers} servers and {config.num_workers} workers on "
        f"{','.join(config.nodes)} from port {config.start_port}, {config.transport}, "
        f"{config.max_restarts} restarts",
        max_restarts=config.max_restarts,
        join_timeout_s=config.join_timeout_s,
    )
    kind = HubLink if config.node_rank == 0 else LeafLink
    return kind(link, signals.wake)
