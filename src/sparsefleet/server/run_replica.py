"""Runs a replica process, which keeps copies of durable servers' logs on its disk."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from sparsefleet import _core
from sparsefleet.endpoint import Endpoint, parse_endpoint
from sparsefleet.field_checks import require
from sparsefleet.job_key import find_job_key
from sparsefleet.server.run_server import EndingSignals, TransportName, wait_for_the_end, write_log

__all__ = ["ReplicaConfig", "replica_place", "run_replica"]

ReplicaDurability = Literal["process", "disk"]
_log = logging.getLogger("sparsefleet.replica")


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaConfig:
    """Configuration of a replica, which may serve several servers.

    >>> ReplicaConfig(endpoint="127.0.0.1:0", log_dir="/tmp/replica").durability
    'disk'
    """

    endpoint: str = "127.0.0.1:9200"
    """HOST:PORT to listen on; port 0 picks a free port."""

    log_dir: str
    """Directory for the copies; the copy for server K is in server-K."""

    durability: ReplicaDurability = "disk"
    """With "disk", replies wait until records are on disk. With "process", replies wait until
    records are written, so records are lost if this machine and the server's fail at the same time.
    """

    transport: TransportName = "auto"
    """One of "auto", "tls" and "plain"; see `ServerConfig.transport`."""

    def __post_init__(self) -> None:
        parse_endpoint(self.endpoint)
        require(bool(self.log_dir), self, "log_dir", "a directory")
        for name, kind in (("durability", ReplicaDurability), ("transport", TransportName)):
            wanted = " or ".join(repr(one) for one in get_args(kind))
            require(getattr(self, name) in get_args(kind), self, name, wanted)


def replica_place(environ: Mapping[str, str] | None = None) -> str:
    """Return the log directory that a launcher gave this process, or "".

    >>> replica_place({"SPARSEFLEET_LOG_DIR": "/tmp/job"})
    '/tmp/job/replica'
    """
    environ = os.environ if environ is None else environ
    log_dir = environ.get("SPARSEFLEET_LOG_DIR", "")
    return os.path.join(log_dir, "replica") if log_dir else ""


def run_replica(config: ReplicaConfig) -> None:
    """Serve until SIGTERM or SIGINT, then return. Prints one line with the port when ready.

    Outside the main thread, it installs no signal handlers.
    """
    with EndingSignals() as ending:
        endpoint = parse_endpoint(config.endpoint)
        server = _core.Server(
            host=endpoint.host,
            port=endpoint.port,
            job_key=find_job_key([config.endpoint]),
            transport=config.transport,
            log=write_log,
            replica_dir=config.log_dir,
            replica_sync=config.durability == "disk",
            max_frame_bytes=_core.MAX_BODY_BYTES,
        )
        try:
            where = Endpoint(endpoint.host, server.port)
            print(f"sparsefleet replica listening on {where} ({config.transport})", flush=True)
            _log.info("exiting: %s", wait_for_the_end(server, ending))
        finally:
            server.stop()
