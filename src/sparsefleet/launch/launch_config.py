"""The configuration of a job."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal, get_args

from sparsefleet.endpoint import parse_endpoint
from sparsefleet.errors import ConfigError
from sparsefleet.field_checks import require, require_int, require_not_negative, require_positive
from sparsefleet.monitor.otlp import check_otlp_url

__all__ = ["DurabilityName", "LaunchConfig", "PaddleWorkers", "RestartName", "TransportName"]

# The server package has the same type, but importing it would load the native extension, which the
# launcher does not need.
TransportName = Literal["auto", "tls", "plain"]
DurabilityName = Literal["off", "process", "disk", "replica"]
RestartName = Literal["auto", "killed", "failed", "all"]

_MAX_PROCESSES = 2**16
_RESTARTS_ALONE = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class PaddleWorkers:
    """The settings that Paddle's launcher passes to the workers of a collective job.

    Logs then also follow the conventions of Paddle's launcher: existing logs are appended to, and
    logs are numbered per node.
    """

    endpoints: tuple[str, ...]
    """All workers' addresses as "host:port", node by node. Workers connect to the first one."""

    gpus: tuple[int, ...]
    """The GPU of each worker on this node."""

    def __post_init__(self) -> None:
        for text in self.endpoints:
            parse_endpoint(text)
        require(len(set(self.endpoints)) == len(self.endpoints), self, "endpoints", "all different")


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchConfig:
    """One job: a script run by servers and workers, or a collective job if there are no servers.

    >>> LaunchConfig(script="json.tool", is_module=True, num_workers=2).nodes
    ()
    """

    script: str
    """The path of a Python script, run once per server and per worker."""

    arguments: tuple[str, ...] = ()
    """Arguments passed to the script."""

    is_module: bool = False
    """Whether `script` is a module name, run like `python -m`."""

    num_servers: int = 1
    """The number of servers on all nodes. If 0, workers train collectively."""

    num_workers: int = 1
    """The number of workers on all nodes."""

    log_dir: str = "logs"
    """The directory for one log file per process: serverlog.0, workerlog.0 ..."""

    transport: TransportName = "auto"
    """How servers and workers communicate; passed to them as SPARSEFLEET_TRANSPORT."""

    durability: DurabilityName = "process"
    """Failures that acknowledged changes survive; passed to servers as SPARSEFLEET_DURABILITY."""

    state_dir: str = ""
    """A directory for the servers' logs that is kept until the job succeeds. A job started with the
    same directory continues where this one stopped. If empty, a new directory is used and removed
    when the job ends.
    """

    start_port: int = 0
    """The port of the first server on a host; others use the next ports. If 0, any free ports."""

    endpoints: tuple[str, ...] = ()
    """The servers' addresses, instead of `start_port`; all on this machine."""

    proxies: tuple[str, ...] = ()
    """The servers' addresses as workers see them, in the same order; default: `endpoints`."""

    nodes: tuple[str, ...] = ()
    """The job's machines by name or address, the same list on each. If empty, only this machine."""

    node_rank: int = 0
    """This machine's index in `nodes`."""

    native_servers: bool = False
    """Whether servers run `sparsefleet server` instead of the script."""

    keep_going: bool = False
    """Whether to continue when a worker fails."""

    restart: RestartName = "auto"
    """Which processes are restarted when one fails. "killed" restarts the failed process if it was
    killed by a signal or is a server that has served; "failed" restarts the failed process, however
    it failed; "all" restarts the whole job. "auto" is "killed" with durable servers, plus "all" for
    other failures if `max_restarts` is given; without durable servers it is "all", except for a
    killed rank that the others can replace.
    """

    max_restarts: int | None = None
    """If `restart` is "all", how many times the job is restarted (None means 0); otherwise how many
    times each process is restarted within five minutes (None means 20).
    """

    quiet: bool = False
    """Whether to show failures only."""

    show: str = ""
    """A process whose output is shown, such as worker.0 or server.1, or all. If empty, no output is
    shown.
    """

    grace_s: float = 10.0
    """Seconds between asking a process to exit (SIGTERM) and killing it."""

    join_timeout_s: float = 300.0
    """Seconds within which all nodes must join."""

    metrics: str = ""
    """HOST:PORT where the launcher serves the metrics of all processes; port 0 picks a free port.
    Processes then serve their own metrics on free ports of HOST. If empty, no metrics are served.
    """

    dashboard: str = ""
    """HOST:PORT of the job's web page, which needs a token; port 0 picks a free port. If
    empty, there is no page.
    """

    otlp: str = ""
    """http://HOST:PORT of an OpenTelemetry collector that the launcher pushes the metrics of all
    processes to. If empty, no metrics are pushed.
    """

    set_variables: tuple[tuple[str, str], ...] = ()
    """Environment variables for every process."""

    unset_variables: tuple[str, ...] = ()
    """Environment variables that are removed for every process."""

    paddle: PaddleWorkers | None = None
    """Settings of a job started by Paddle's launcher."""

    def __post_init__(self) -> None:
        require(bool(self.script), self, "script", "the path of a script, or a module")
        if not self.is_module and not os.path.isfile(self.script):
            raise ConfigError(f"script {self.script!r} does not exist or is not a file")
        require_int(self, "num_servers", 0, _MAX_PROCESSES)
        require_int(self, "num_workers", 1, _MAX_PROCESSES)
        if self.max_restarts is not None:
            require_int(self, "max_restarts", 0, 2**31 - 1)
        levels = get_args(DurabilityName)
        require(self.durability in levels, self, "durability", " or ".join(levels))
        rules = get_args(RestartName)
        require(self.restart in rules, self, "restart", " or ".join(rules))
        transports = get_args(TransportName)
        require(self.transport in transports, self, "transport", " or ".join(transports))
        require_int(self, "start_port", 0, 65535)
        require_not_negative(self, "grace_s")
        require_positive(self, "join_timeout_s")
        self._check_endpoints()
        self._check_nodes()
        self._check_restart()
        self._check_state_dir()
        self._check_show()
        self._check_collective()
        for address in (self.metrics, self.dashboard):
            if address:
                parse_endpoint(address)
        if self.otlp:
            check_otlp_url(self.otlp)
        if not self.endpoints and self.start_port + self.num_servers > 65535:
            raise ConfigError(
                f"LaunchConfig.start_port must leave {self.num_servers} ports for servers below "
                f"65536, got {self.start_port}"
            )

    @property
    def is_durable(self) -> bool:
        """Return whether the job has servers that recover the changes they acknowledged."""
        return self.num_servers > 0 and self.durability != "off"

    @property
    def restart_rule(self) -> Literal["killed", "failed", "all"]:
        """Return `restart`, with "auto" resolved to the rule that it stands for."""
        if self.restart != "auto":
            return self.restart
        return "killed" if self.is_durable else "all"

    @property
    def replaces_ranks(self) -> bool:
        """Return whether a lost rank is restarted alone if the other ranks can wait for it."""
        is_collective = self.num_servers == 0 and self.paddle is None and not self.nodes
        return is_collective and self.restart == "auto" and self.restart_limit > 0

    @property
    def max_starts_of_all(self) -> int:
        """Return how many times all processes may be restarted together."""
        is_all = self.restart_rule == "all" or self.restart == "auto"
        return self.max_restarts or 0 if is_all else 0

    @property
    def restart_limit(self) -> int:
        """Return `max_restarts`, with None resolved to its default."""
        if self.max_restarts is not None:
            return self.max_restarts
        return 0 if self.restart_rule == "all" else _RESTARTS_ALONE

    def _check_restart(self) -> None:
        if self.restart in ("killed", "failed") and not self.is_durable:
            missing = "servers" if self.num_servers == 0 else "durable servers"
            raise ConfigError(
                f"LaunchConfig.restart={self.restart!r} needs {missing}, which keep the process's "
                "state; use restart='all', or durability='process'"
            )

    def _check_state_dir(self) -> None:
        if not self.state_dir:
            return
        if not self.is_durable:
            raise ConfigError(
                f"LaunchConfig.state_dir={self.state_dir!r} needs durable servers, whose logs it "
                "holds; use num_servers > 0 and durability='process', or checkpoints instead"
            )
        if self.nodes:
            raise ConfigError(
                "LaunchConfig.state_dir cannot be used with nodes; on several machines, continue "
                "from checkpoints (Trainer(checkpoints=..., resume='auto'))"
            )

    def _check_show(self) -> None:
        counts = {"worker": self.num_workers, "server": self.num_servers}
        role, _, index = self.show.partition(".")
        if self.show in ("", "all"):
            return
        if not (index.isdecimal() and int(index) < counts.get(role, 0)):
            ranges = [f"{name}.0 to {name}.{n - 1}" for name, n in counts.items() if n]
            raise ConfigError(
                f"LaunchConfig.show must be a process of the job, {' or '.join(ranges)}, or all, "
                f"got {self.show!r}"
            )

    def _check_collective(self) -> None:
        num_nodes = max(1, len(self.nodes))
        if self.num_servers == 0 and self.num_workers % num_nodes:
            raise ConfigError(
                f"LaunchConfig.num_workers must be a multiple of the {num_nodes} nodes in a job "
                f"without servers, got {self.num_workers}"
            )
        if self.num_servers == 0 and self.keep_going:
            raise ConfigError(
                "LaunchConfig.keep_going needs servers, because collective training cannot "
                "continue without one of its workers; use max_restarts to restart all of them"
            )
        if self.paddle is not None and len(self.paddle.endpoints) != self.num_workers:
            raise ConfigError(
                f"LaunchConfig.paddle must have one endpoint for each of the {self.num_workers} "
                f"workers, got {len(self.paddle.endpoints)}"
            )

    def _check_endpoints(self) -> None:
        for text in self.endpoints:
            parse_endpoint(text)
        if not self.endpoints:
            return
        require(len(set(self.endpoints)) == len(self.endpoints), self, "endpoints", "all different")
        if len(self.endpoints) != self.num_servers:
            raise ConfigError(
                f"LaunchConfig.endpoints must have one entry per server ({self.num_servers}), "
                f"got {len(self.endpoints)}: {','.join(self.endpoints)}"
            )
        if self.proxies:
            require(
                len(self.proxies) == self.num_servers, self, "proxies", "one address per server"
            )
        if self.nodes:
            raise ConfigError("LaunchConfig.endpoints and nodes cannot be used together")

    def _check_nodes(self) -> None:
        if not self.nodes:
            require(self.node_rank == 0, self, "node_rank", "0 unless nodes are given")
            return
        require_int(self, "node_rank", 0, len(self.nodes) - 1)
        for host in self.nodes:
            parse_endpoint(f"{host}:1")
        if self.start_port == 0:
            raise ConfigError(
                "LaunchConfig.start_port is required with nodes, because all nodes must know the "
                "servers' ports in advance"
            )
