"""A job's metrics and dashboard, served by its launcher."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sparsefleet.endpoint import Endpoint, parse_endpoint
from sparsefleet.launch.child_process import ChildProcess, ChildState, describe_exit
from sparsefleet.launch.failure_cause import is_stopped
from sparsefleet.launch.launch_config import LaunchConfig
from sparsefleet.launch.status_display import JobDisplay
from sparsefleet.monitor.endpoint_file import (
    TARGETS_MODE,
    Target,
    labelled,
    read_targets,
    write_atomically,
)
from sparsefleet.monitor.http_server import HttpServer, Request, Response
from sparsefleet.monitor.job_file import FOLDER, JobFile, JobProcess
from sparsefleet.monitor.job_watch import JobWatch, dashboard_routes
from sparsefleet.monitor.otlp import OtlpPusher, check_otlp_url
from sparsefleet.monitor.registry import CONTENT_TYPE, PROCESS, expose
from sparsefleet.monitor.series import Sample

if TYPE_CHECKING:
    pass

__all__ = ["JobMonitor", "WatchedDisplay", "open_monitor"]

_NOTES = 50
_LOOK_S = 0.5
_LOOPBACK = "127.0.0.1:0"
_URL_FILE = "dashboard.url"


@contextlib.contextmanager
def open_monitor(config: LaunchConfig, display: JobDisplay) -> Iterator[JobMonitor | None]:
    """Serve the metrics and dashboard that a job's configuration requests, until the block ends."""
    if not (config.metrics or config.dashboard or config.otlp):
        yield None
        return
    monitor = JobMonitor(config, display)
    try:
        yield monitor
    finally:
        monitor.close()


class JobMonitor:
    """Gathers the metrics of a job's processes and serves them at one address."""

    def __init__(self, config: LaunchConfig, display: JobDisplay) -> None:
        self._config = config
        self._shown = display
        self.folder = os.path.abspath(os.path.join(config.log_dir, FOLDER))
        """The directory where processes write their addresses."""
        os.makedirs(self.folder, exist_ok=True)
        for stale in Path(self.folder).glob("*-*.json"):
            stale.unlink(missing_ok=True)
        self.display = WatchedDisplay(display, config, self.folder)
        """The display to use, which feeds the dashboard as well as the original display."""
        self._watch = JobWatch(self.folder, others=_other_launchers(config))
        self._watch.start()
        self._servers: list[HttpServer] = []
        if config.metrics:
            self._serve_metrics(config.metrics)
        if config.dashboard:
            self._serve_dashboard(config.dashboard)
        self._pusher: OtlpPusher | None = None
        if config.otlp:
            self._pusher = OtlpPusher(config.otlp, self._all)
            self.display.note(f"metrics of the job are pushed to {check_otlp_url(config.otlp)}")

    def variables(self) -> dict[str, str]:
        """Return the environment variables that let processes serve their metrics."""
        where = parse_endpoint(self._config.metrics or self._config.dashboard or _LOOPBACK)
        return {
            "SPARSEFLEET_METRICS": str(Endpoint(where.host, 0)),
            "SPARSEFLEET_METRICS_DIR": self.folder,
            "SPARSEFLEET_OTLP": "off",  # the launcher pushes what it has gathered
        }

    def close(self) -> None:
        """Notify dashboards that the job has ended, and stop serving."""
        self.display.end()
        self._watch.look()
        if self._pusher is not None:
            self._pusher.close()
        self._watch.stop()
        time.sleep(0.1)  # lets open pages get the last update
        for server in self._servers:
            server.close()
        Path(self.folder, _URL_FILE).unlink(missing_ok=True)

    def _serve_metrics(self, address: str) -> None:
        routes = {"/metrics": self._show_all, "/metrics/launcher": self._show_own}
        server = HttpServer(address, routes)
        self._servers.append(server)
        self.display.launcher = str(server.endpoint)
        self.display.note(f"metrics of the job at http://{server.endpoint}/metrics")

    def _serve_dashboard(self, address: str) -> None:
        token = secrets.token_urlsafe(24)
        server = HttpServer(address, dashboard_routes(self._watch), token=token)
        self._servers.append(server)
        url = f"http://{server.endpoint}/?token={token}"
        path = os.path.join(self.folder, _URL_FILE)
        write_atomically(path, url + "\n")  # mode 0600
        self._shown.note(f"dashboard at {url}")  # not an event, since the page needs no token

    def _own(self) -> list[Sample]:
        place = (("role", "launcher"), ("index", str(self._config.node_rank)))
        return [*labelled(PROCESS.collect(), place), *self._watch.samples()]

    def _all(self) -> list[Sample]:
        return [*self._own(), *self._watch.gathered()]

    def _show_own(self, _: Request) -> Response:
        return Response(expose(self._own()).encode(), CONTENT_TYPE)

    def _show_all(self, _: Request) -> Response:
        return Response(expose(self._all()).encode(), CONTENT_TYPE)


class WatchedDisplay(JobDisplay):
    """Forwards everything to another display, and writes the state of the job to a file."""

    def __init__(self, display: JobDisplay, config: LaunchConfig, folder: str) -> None:
        self._display = display
        self._config = config
        self._folder = folder
        self._begun = time.time()
        self._notes: deque[tuple[float, str]] = deque(maxlen=_NOTES)
        self._pids: dict[str, list[int]] = {}
        self._processes: list[JobProcess] = []
        self._states: list[tuple[int, ChildState]] = []
        self._next_look = 0.0
        self._written: JobFile | None = None
        self._targets: list[Target] = []
        self.launcher = ""
        """The address of the launcher's own metrics, if they are served."""
        self._write("")

    def note(self, text: str) -> None:
        self._notes.append((time.time(), text))
        self._display.note(text)

    def show_output(self, lines: Sequence[str]) -> None:
        self._display.show_output(lines)

    def refresh(self, children: Sequence[ChildProcess]) -> None:
        self._display.refresh(children)
        now = time.monotonic()
        states = [(child.pid, child.state) for child in children]
        if now < self._next_look and states == self._states:
            return
        self._states = states
        self._next_look = now + _LOOK_S
        self._processes = [self._process(child) for child in children]
        self._write("")
        self._write_targets()

    def end(self) -> None:
        """Record that the job has ended."""
        failed = [each for each in self._processes if each.state == "failed"]
        text = "; ".join(f"{each.name} {each.detail}" for each in failed)
        self._write(f"the job has ended: {text}" if text else "the job has ended")

    def _process(self, child: ChildProcess) -> JobProcess:
        pids = self._pids.setdefault(child.name, [])
        if child.pid not in pids:
            pids.append(child.pid)
        state = child.state.value
        detail = child.log.last_line() if child.is_running else ""
        if child.state is ChildState.FAILED and child.exit_code is not None:
            detail = describe_exit(child.exit_code)
        elif is_stopped(child):
            state, detail = "suspended", "suspended by a signal"
        return JobProcess(
            role=child.plan.role,
            index=child.plan.index,
            pid=child.pid,
            state=state,
            detail=detail,
            starts=len(pids),
        )

    def _write(self, ended: str) -> None:
        job = JobFile(
            script=self._config.script,
            pid=os.getpid(),
            begun=self._begun,
            ended=ended,
            processes=tuple(self._processes),
            notes=tuple(self._notes),
        )
        if job != self._written:
            with contextlib.suppress(OSError):  # a full disk must not stop the job
                job.write(self._folder)
            self._written = job

    def _write_targets(self) -> None:
        """Write one service-discovery file for a Prometheus that scrapes each process."""
        targets = read_targets(self._folder)
        if targets == self._targets:
            return
        groups = [
            {"targets": [t.address], "labels": {"role": t.role, "index": str(t.index)}}
            for t in targets
        ]
        if self.launcher:
            labels = {"__metrics_path__": "/metrics/launcher"}
            groups.append({"targets": [self.launcher], "labels": labels})
        with contextlib.suppress(OSError):
            text = json.dumps(groups, indent=1) + "\n"
            path = os.path.join(self._folder, "targets.json")
            write_atomically(path, text, mode=TARGETS_MODE)
            self._targets = targets


def _other_launchers(config: LaunchConfig) -> list[Target]:
    """Return the other nodes' launchers, for the first node's launcher to gather their metrics."""
    if not config.metrics or config.node_rank != 0:
        return []
    port = parse_endpoint(config.metrics).port
    if len(config.nodes) > 1 and port == 0:
        print(
            "sparsefleet launch: --metrics with port 0 covers only this node; give all nodes the "
            "same port to gather the whole job's metrics on the first node",
            file=sys.stderr,
        )
        return []
    return [
        Target("launcher", rank, f"{host}:{port}")
        for rank, host in enumerate(config.nodes)
        if rank != 0
    ]
