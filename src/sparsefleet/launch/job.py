"""Runs a job on this node, from its first process to its last, and keeps state for the next run."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sparsefleet.endpoint import parse_endpoint
from sparsefleet.errors import ConfigError
from sparsefleet.job_key import find_job_key
from sparsefleet.launch.child_process import EndingSignals, Guard, SpareServer
from sparsefleet.launch.hub_link import HubLink
from sparsefleet.launch.job_plan import (
    EXPOSED_TRAFFIC,
    ProcessPlan,
    child_environment,
    fixed_endpoints,
    fixed_meeting_point,
    fixed_replicas,
    is_traffic_exposed,
    link_port,
    plan_node,
)
from sparsefleet.launch.launch_config import LaunchConfig
from sparsefleet.launch.monitoring import open_monitor
from sparsefleet.launch.node_job import Ending, JobContext, JobObserver, NodeJob
from sparsefleet.launch.node_link import LeafLink, LinkConfig, NodeLink, new_job_id
from sparsefleet.launch.restarts import LostWorkers
from sparsefleet.launch.status_display import JobDisplay, make_display
from sparsefleet.server.run_server import SUCCESSOR_FILE
from sparsefleet.store.own_loop import own_loop_path

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["KeptState", "PortReservation", "given_key", "new_key_file", "run_job"]

_JOB_FILE = "job.json"
_LOCK_FILE = "lock"
_LOGS = "servers"
_OUTBOXES = "outboxes"


class KeptState:
    """The state of a job in `config.state_dir`, locked while open.

    Raises ConfigError if another launcher uses the directory, if it belongs to a different kind of
    job, or if a worker would train on the same data again.
    """

    def __init__(self, config: LaunchConfig) -> None:
        self._place = Path(os.path.abspath(config.state_dir))
        self._shape = {"servers": config.num_servers, "workers": config.num_workers}
        self._repeats_own_loops = config.restart in ("killed", "failed")
        self.job_id = ""
        """The id of the job being continued, or empty if there is none."""

    @property
    def logs(self) -> str:
        """Return the directory of the servers' logs."""
        return str(self._place / _LOGS)

    @property
    def outboxes(self) -> str:
        """Return the directory for data that workers leave for their successors."""
        return str(self._place / _OUTBOXES)

    @contextlib.contextmanager
    def opened(self) -> Iterator[KeptState]:
        """Lock the directory and determine which job it belongs to."""
        self._place.mkdir(parents=True, exist_ok=True)
        with (self._place / _LOCK_FILE).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ConfigError(
                    f"--state-dir {self._place} is in use by another launcher; wait until that one "
                    "exits, or choose a different directory"
                ) from None
            self._find()
            yield self

    def _find(self) -> None:
        path = self._place / _JOB_FILE
        if not path.exists():
            others = [found.name for found in self._place.iterdir() if found.name != _LOCK_FILE]
            if others:
                raise ConfigError(
                    f"--state-dir {self._place} contains {others[0]!r} but no {_JOB_FILE}; use an "
                    "empty directory, or the state directory of an earlier job"
                )
            return
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            job_id, shape = str(found["job"]), found["shape"]
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path} is damaged: {error!r}; remove {self._place}") from error
        if shape != self._shape:
            raise ConfigError(
                f"--state-dir {self._place} belongs to a job with {shape}, but this one has "
                f"{self._shape}; use the same numbers or a different directory"
            )
        looping = [
            index
            for index in range(self._shape["workers"])
            if os.path.exists(own_loop_path(self.logs, index))
        ]
        if looping and not self._repeats_own_loops:
            raise ConfigError(
                f"the job in --state-dir {self._place} cannot be continued: worker {looping[0]} "
                "trained in a custom loop (fleet.step, Executor.run, RemoteStore), which would "
                "repeat updates that the servers have already applied; remove the directory to "
                "start from scratch, or use --restart killed if the script continues its loop "
                "itself"
            )
        self.job_id = job_id

    def begin(self, job_id: str) -> None:
        """Start a new job in the directory, removing its contents."""
        self.remove()
        for folder in (self.logs, self.outboxes):
            os.makedirs(folder)
        draft = self._place / f"{_JOB_FILE}.tmp"
        draft.write_text(json.dumps({"job": job_id, "shape": self._shape}), encoding="utf-8")
        draft.replace(self._place / _JOB_FILE)
        self.job_id = job_id

    def continue_job(self) -> None:
        """Prepare to restart the job's processes, whose addresses may be different now."""
        for path in Path(self.logs).glob(f"*/{SUCCESSOR_FILE}"):
            path.unlink()

    def plan(self, plan: ProcessPlan) -> ProcessPlan:
        """Return the plan for a process that continues the job; a worker resumes its old rank."""
        return replace(plan, appends_log=True, incarnation=int(plan.role == "worker"))

    def remove(self) -> None:
        """Remove the state, because the job has succeeded or is starting over."""
        (self._place / _JOB_FILE).unlink(missing_ok=True)
        for folder in (self.logs, self.outboxes):
            shutil.rmtree(folder, ignore_errors=True)
        self.job_id = ""


_JOIN_LOOK_S = 0.5

# On Linux, a socket that is bound but not listening blocks everyone except a server that binds with
# SO_REUSEADDR, as ours do. On other systems it would block the server, too, so the port is only
# checked there, and another process could take it before the server starts.
_CAN_HOLD = sys.platform == "linux"


class PortReservation:
    """Reserves ports on this machine until it is closed."""

    def __init__(self) -> None:
        self._held: list[socket.socket] = []

    def take_free(self, count: int) -> list[int]:
        """Reserve free ports on 127.0.0.1."""
        sockets = []
        for _ in range(count):
            one = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            self._held.append(one)
            one.bind(("127.0.0.1", 0))
            sockets.append(one)
        ports = [int(one.getsockname()[1]) for one in sockets]
        for one in sockets:
            self._hold(one)
        return ports

    def take(self, endpoint: str) -> None:
        """Reserve one endpoint. Raises ConfigError if another process is listening on it.

        If the address cannot be bound for any other reason, the server will report it.
        """
        where = parse_endpoint(endpoint)
        family = socket.AF_INET6 if ":" in where.host else socket.AF_INET
        one = socket.socket(family, socket.SOCK_STREAM)
        self._held.append(one)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((where.host, where.port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise ConfigError(
                    f"port {where.port} on {where.host} is in use by another process, but this "
                    "job needs it; stop that process or choose a different start port"
                ) from error
        self._hold(one)

    def _hold(self, one: socket.socket) -> None:
        if _CAN_HOLD:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        else:
            one.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._held:
            one.close()


def run_job(
    config: LaunchConfig,
    environ: Mapping[str, str] | None = None,
    observer: JobObserver | None = None,
) -> int:
    """Run the job to completion and return the launcher's exit code.

    After a failure, the process that failed or all processes restart, according to `restart` and
    `max_restarts`. The code is 0 if all workers finally exit with 0; otherwise it is the code of
    the process that failed first (128 + n for signal n), or 128 + n if signal n stopped this
    launcher. No process of the job is left when this function returns. Raises ConfigError if the
    job cannot be started. Must be called in the main thread.
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
        replicas = _take_replicas(config, ports)
        guard = stack.enter_context(Guard(config.grace_s))
        job_variables: dict[str, str] = {}
        if not has_key:
            job_variables["SPARSEFLEET_JOB_KEY_FILE"] = stack.enter_context(new_key_file())
            guard.remove_file(job_variables["SPARSEFLEET_JOB_KEY_FILE"])
        # Nodes started by Paddle's launcher do not know each other unless they share a key.
        link = _open_link(config, environ, signals) if several and has_key else None
        if link is not None:
            stack.callback(link.close)
        display: JobDisplay = stack.enter_context(
            make_display(quiet=config.quiet, show=config.show)
        )
        monitor = stack.enter_context(open_monitor(config, display))
        if monitor is not None:
            display = monitor.display
            job_variables.update(monitor.variables())
        if "SPARSEFLEET_JOB_KEY_FILE" in job_variables:
            display.note(f"job key in {job_variables['SPARSEFLEET_JOB_KEY_FILE']}")
        if is_traffic_exposed(config, environ):
            display.note(EXPOSED_TRAFFIC)

        job_id = new_job_id() if link is None else _await_job_id(link, signals)

        lost_workers = LostWorkers(endpoints, config.transport, {**environ, **job_variables})
        stack.callback(lost_workers.close)

        def environment(plan: ProcessPlan) -> dict[str, str]:
            return child_environment(environ, config, job_variables, plan)

        spare = SpareServer(environment, guard)
        stack.callback(spare.close)

        notice = stack.enter_context(
            tempfile.TemporaryDirectory(prefix=".notice-", dir=config.log_dir)
        )
        job_variables["SPARSEFLEET_NOTICE_FILE"] = os.path.join(os.path.abspath(notice), "notice")
        kept = None
        if config.state_dir:
            kept = stack.enter_context(KeptState(config).opened())
            job_variables["SPARSEFLEET_STATE_KEPT"] = "1"
            job_variables["SPARSEFLEET_MEMORY_DIR"] = kept.outboxes
        elif config.is_durable:
            job_variables["SPARSEFLEET_MEMORY_DIR"] = stack.enter_context(_memory_directory())
            guard.remove_directory(job_variables["SPARSEFLEET_MEMORY_DIR"])

        def ranks_directory() -> str:
            """Create the directory where ranks declare, after this start of the job, that they can
            be replaced.
            """
            if not config.replaces_ranks:
                return ""
            job_variables["SPARSEFLEET_REPLACE_RANKS"] = "1"
            job_variables["SPARSEFLEET_MEMORY_DIR"] = stack.enter_context(_memory_directory())
            guard.remove_directory(job_variables["SPARSEFLEET_MEMORY_DIR"])
            return job_variables["SPARSEFLEET_MEMORY_DIR"]

        def run_once(restarts: int) -> Ending:
            state_dir, continues = "", False
            name = f"{job_id}-{restarts}"
            if kept is not None:
                continues = bool(kept.job_id) and restarts == 0
                if continues:
                    kept.continue_job()
                    display.note(f"continuing job {kept.job_id} from {config.state_dir}")
                else:
                    kept.begin(name)
                name, state_dir = kept.job_id, kept.logs
            elif config.is_durable:
                # New for each start of the whole job, because the job then resumes from its
                # checkpoints.
                place = tempfile.TemporaryDirectory(
                    prefix="server-state-", dir=config.log_dir, ignore_cleanup_errors=True
                )
                state_dir = os.path.abspath(stack.enter_context(place))
            if state_dir:
                job_variables["SPARSEFLEET_LOG_DIR"] = state_dir
            job_variables["SPARSEFLEET_JOB_ID"] = name
            job = NodeJob(
                JobContext(
                    config=config,
                    signals=signals,
                    display=display,
                    guard=guard,
                    link=link,
                    lost_workers=lost_workers,
                    observer=observer or JobObserver(),
                    spare=spare,
                    environment=environment,
                    state_dir=state_dir,
                    ranks_dir=ranks_directory(),
                    notice_file=job_variables["SPARSEFLEET_NOTICE_FILE"],
                    restarts=restarts,
                )
            )
            try:
                for plan in plan_node(config, endpoints, meeting_point, restarts, replicas):
                    if signals.count or not job_id:
                        break
                    job.start(kept.plan(plan) if kept is not None and continues else plan)
                return job.run()
            finally:
                job.kill_all()

        exit_code = _run_to_the_end(run_once, config.max_starts_of_all)
        if kept is not None and exit_code == 0:
            kept.remove()
        return exit_code


def _run_to_the_end(run_once: Callable[[int], Ending], max_restarts: int) -> int:
    ending = run_once(0)
    while ending.restarts:
        print(
            f"sparsefleet launch: restart {ending.restarts} of {max_restarts}: restarting all "
            "processes of the job",
            file=sys.stderr,
            flush=True,
        )
        ending = run_once(ending.restarts)
    return ending.exit_code


def _memory_directory() -> tempfile.TemporaryDirectory[str]:
    """Create a directory, in memory if possible, for data that processes leave to successors."""
    shared = "/dev/shm"
    in_memory = "TMPDIR" not in os.environ and os.path.isdir(shared)
    return tempfile.TemporaryDirectory(
        prefix="sparsefleet-job-", dir=shared if in_memory else None, ignore_cleanup_errors=True
    )


def _take_endpoints(config: LaunchConfig, ports: PortReservation) -> list[str]:
    """Return all servers' endpoints. Those on this node are reserved until the job ends."""
    endpoints = fixed_endpoints(config)
    if not endpoints:
        return [f"127.0.0.1:{port}" for port in ports.take_free(config.num_servers)]
    for plan in plan_node(config, endpoints):
        if plan.role == "server":
            ports.take(plan.endpoint)
    return endpoints


def _take_meeting_point(config: LaunchConfig, ports: PortReservation) -> str:
    """Return the rendezvous address of the workers. On a single machine, its port is reserved."""
    fixed = fixed_meeting_point(config)
    if not fixed:
        return f"127.0.0.1:{ports.take_free(1)[0]}"
    if not config.nodes:
        ports.take(fixed)
    return fixed


def _take_replicas(config: LaunchConfig, ports: PortReservation) -> list[str]:
    """Return the endpoints of all nodes' replicas; reserve the endpoint on this node."""
    if config.num_servers == 0 or config.durability != "replica":
        return []
    replicas = fixed_replicas(config)
    if not replicas:
        return [f"127.0.0.1:{ports.take_free(1)[0]}"]
    ports.take(replicas[config.node_rank])
    return replicas


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
        f"{config.durability}, {config.restart_limit} restarts of {config.restart_rule}",
        max_restarts=config.max_starts_of_all,
        join_timeout_s=config.join_timeout_s,
    )
    kind = HubLink if config.node_rank == 0 else LeafLink
    return kind(link, signals.wake)


def _await_job_id(link: NodeLink, signals: EndingSignals) -> str:
    """Return the job id that all nodes share, or "" if the job ends before this node has joined."""
    while not (link.job_id or link.is_over or signals.count):
        signals.wait(_JOIN_LOOK_S)
    return link.job_id


_KEY_BYTES = 32


def given_key(environ: Mapping[str, str], *, is_required: bool) -> bool:
    """Return whether the environment contains a job key for the processes to inherit.

    Raises ConfigError if a required key is missing, or if the processes would reject it.
    """
    found = "SPARSEFLEET_JOB_KEY" in environ or "SPARSEFLEET_JOB_KEY_FILE" in environ
    if is_required and not found:
        raise ConfigError(
            "a job on several nodes needs a job key that all of them share; set "
            "SPARSEFLEET_JOB_KEY to the same text everywhere (python -c 'import secrets; "
            "print(secrets.token_hex())' prints one), or SPARSEFLEET_JOB_KEY_FILE to a file that "
            "holds it"
        )
    if found:
        find_job_key((), environ)
    return found


@contextlib.contextmanager
def new_key_file() -> Iterator[str]:
    """Write a new key to a file that only this user can read; yield its path, then remove it."""
    descriptor, path = tempfile.mkstemp(prefix="sparsefleet-job-", suffix=".key")  # mode 0600
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(_KEY_BYTES) + "\n")
        yield path
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
