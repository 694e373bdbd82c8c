"""What a job consists of, as the command line says it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal, get_args

from sparsefleet.endpoint import parse_endpoint
from sparsefleet.errors import ConfigError
from sparsefleet.field_checks import require, require_int, require_not_negative, require_positive

__all__ = ["LaunchConfig", "PaddleWorkers", "TransportName"]

# The server room has the same type; importing it would need the native extension, which the
# launcher does not.
TransportName = Literal["auto", "tls", "plain"]

_MAX_PROCESSES = 2**16


@dataclass(frozen=True, kw_only=True, slots=True)
class PaddleWorkers:
    """What workers of a collective job are told as by Paddle's launcher.

    Logs are then as its are, too: continued if they exist, numbered by the place on the node.
    """

    endpoints: tuple[str, ...]
    """Every worker as "host:port", node by node. They meet at the first."""

    gpus: tuple[int, ...]
    """The GPU of each worker of this node."""

    def __post_init__(self) -> None:
        for text in self.endpoints:
            parse_endpoint(text)
        require(len(set(self.endpoints)) == len(self.endpoints), self, "endpoints", "all different")


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchConfig:
    """One job: a script, run by servers and workers; without servers, a collective job.

    >>> LaunchConfig(script="json.tool", is_module=True, num_workers=2).nodes
    ()
    """

    script: str
    """Path of a Python script, run once for each server and each worker."""

    arguments: tuple[str, ...] = ()
    """Handed to the script."""

    is_module: bool = False
    """`script` is the name of a module, run as by `python -m`."""

    num_servers: int = 1
    """Servers, on all nodes together. 0: workers train collectively."""

    num_workers: int = 1
    """Workers, on all nodes together."""

    log_dir: str = "logs"
    """Gets one file for each process: serverlog.0, workerlog.0 ..."""

    transport: TransportName = "auto"
    """How servers and workers talk; told to them by SPARSEFLEET_TRANSPORT."""

    start_port: int = 0
    """The servers of a host listen at this port and those following it. 0: free ones."""

    endpoints: tuple[str, ...] = ()
    """Where the servers listen, instead of `start_port`; all on this machine."""

    nodes: tuple[str, ...] = ()
    """The machines of the job by name or address, the same list everywhere. Empty: this one."""

    node_rank: int = 0
    """This machine's place in `nodes`."""

    native_servers: bool = False
    """Servers run `sparsefleet server` instead of the script."""

    keep_going: bool = False
    """A worker that fails does not end the job."""

    max_restarts: int = 0
    """How often all processes are started anew after one has failed."""

    quiet: bool = False
    """Show failures only."""

    show: str = ""
    """Output that is shown as well: of worker.0, server.1 ..., of all. Empty: of none."""

    grace_s: float = 10.0
    """From asking a process to end (SIGTERM) to killing it."""

    join_timeout_s: float = 300.0
    """All nodes must have been started within this."""

    set_variables: tuple[tuple[str, str], ...] = ()
    """Environment variables for every process."""

    unset_variables: tuple[str, ...] = ()
    """Environment variables no process gets to see."""

    paddle: PaddleWorkers | None = None
    """Told as by Paddle's launcher."""

    def __post_init__(self) -> None:
        require(bool(self.script), self, "script", "the path of a script, or a module")
        if not self.is_module and not os.path.isfile(self.script):
            raise ConfigError(f"script {self.script!r} does not exist, or is no file")
        require_int(self, "num_servers", 0, _MAX_PROCESSES)
        require_int(self, "num_workers", 1, _MAX_PROCESSES)
        require_int(self, "max_restarts", 0, 2**31 - 1)
        transports = get_args(TransportName)
        require(self.transport in transports, self, "transport", " or ".join(transports))
        require_int(self, "start_port", 0, 65535)
        require_not_negative(self, "grace_s")
        require_positive(self, "join_timeout_s")
        self._check_endpoints()
        self._check_nodes()
        self._check_show()
        self._check_collective()
        if not self.endpoints and self.start_port + self.num_servers > 65535:
            raise ConfigError(
                f"LaunchConfig.start_port must leave room for {self.num_servers} servers "
                f"below 65536, got {self.start_port}"
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
                f"LaunchConfig.num_workers of a job without servers must be a multiple of its "
                f"{num_nodes} nodes, got {self.num_workers}"
            )
        if self.num_servers == 0 and self.keep_going:
            raise ConfigError(
                "LaunchConfig.keep_going needs servers: workers that train collectively cannot go "
                "on without one of them; max_restarts starts all of them anew"
            )
        if self.paddle is not None and len(self.paddle.endpoints) != self.num_workers:
            raise ConfigError(
                f"LaunchConfig.paddle must have an endpoint for each of {self.num_workers} "
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
                f"LaunchConfig.endpoints must be as many as the servers, {self.num_servers}, "
                f"got {len(self.endpoints)}: {','.join(self.endpoints)}"
            )
        if self.nodes:
            raise ConfigError("LaunchConfig.endpoints and nodes exclude each other")

    def _check_nodes(self) -> None:
        if not self.nodes:
            require(self.node_rank == 0, self, "node_rank", "0 unless nodes are given")
            return
        require_int(self, "node_rank", 0, len(self.nodes) - 1)
        for host in self.nodes:
            parse_endpoint(f"{host}:1")
        if self.start_port == 0:
            raise ConfigError(
                "LaunchConfig.start_port must be given with nodes: all nodes must know the "
                "servers' ports beforehand"
            )
