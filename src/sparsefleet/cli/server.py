"""The flags of `sparsefleet server` and `sparsefleet replica`."""

from __future__ import annotations

import argparse
import math
import os
from typing import get_args

from sparsefleet.fleet import role_from_environment
from sparsefleet.server import ReplicaConfig, ServerConfig
from sparsefleet.server.run_replica import replica_place
from sparsefleet.server.run_server import (
    DurabilityName,
    await_order,
    durable_settings,
    predecessor_config,
)

__all__ = [
    "REPLICA_DESCRIPTION",
    "SERVER_DESCRIPTION",
    "add_replica_flags",
    "add_server_flags",
    "replica_config",
    "server_config",
]

SERVER_DESCRIPTION = """\
Runs one server until SIGTERM, SIGINT (Ctrl-C) or a client's shutdown request. It then
finishes the requests in progress and exits with 0. Prints one line when it is ready.
"""
REPLICA_DESCRIPTION = """\
Keeps copies of the logs of durable servers (`sparsefleet server --durability replica`), which
recover from them when their machine is lost. Run it on a different machine. It holds no tables in
memory. It prints one line when it is ready, and exits on SIGTERM.
"""


def add_server_flags(parser: argparse.ArgumentParser) -> None:
    """Add all flags except --transport and --log-level, which are common to several commands."""
    parser.add_argument(
        "--endpoint",
        metavar="HOST:PORT",
        default="",
        help="address to listen on; port 0 picks a free port (default: this server's "
        "address in its job, if a scheduler started it, see docs/env.md; else 127.0.0.1:9100, "
        "this machine only)",
    )
    parser.add_argument(
        "--index",
        type=int,
        default=None,
        help="position of this server in the workers' list of endpoints, from 0 (default: as in "
        "its job, else 0)",
    )
    parser.add_argument(
        "--num-servers",
        type=int,
        default=None,
        help="number of servers in the fleet (default: as in its job, else 1)",
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=0,
        help="threads that execute requests (default: one per core, at most 8)",
    )
    parser.add_argument(
        "--max-frame-mb",
        type=int,
        default=256,
        help="reject larger requests and replies, in MiB (default 256)",
    )
    parser.add_argument(
        "--peer-timeout",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="a worker silent for this long counts as lost (default 10)",
    )
    _add_connection_flags(parser)
    parser.add_argument(
        "--metrics",
        metavar="HOST:PORT",
        default="",
        help="serve metrics for Prometheus at http://HOST:PORT/metrics; port 0 picks a free port "
        "(default: SPARSEFLEET_METRICS, else none)",
    )
    parser.add_argument(
        "--save-root",
        metavar="DIRECTORY",
        default="",
        help="restrict clients' saves and loads to this directory or URL (default: no restriction)",
    )
    parser.add_argument(
        "--durability",
        choices=get_args(DurabilityName),
        default=os.environ.get("SPARSEFLEET_DURABILITY", "off"),
        help="failures that acknowledged changes survive: off (none), process (kill -9 of this "
        "process), disk (also power loss) or replica (the loss of this machine); default: "
        "SPARSEFLEET_DURABILITY, else off",
    )
    parser.add_argument(
        "--log-dir",
        metavar="DIRECTORY",
        default="",
        help="directory for a durable server's log and snapshots, which it recovers from; "
        "each server needs its own (default: server-INDEX in SPARSEFLEET_LOG_DIR)",
    )
    parser.add_argument(
        "--replica",
        metavar="HOST:PORT",
        default="",
        help="the `sparsefleet replica` that holds a copy of the log, for --durability replica "
        "(default: this server's entry in SPARSEFLEET_REPLICAS)",
    )
    parser.add_argument(
        "--replica-wait",
        type=float,
        default=math.inf,
        metavar="SECONDS",
        help="replies wait this long for a lost replica, then the server continues without it "
        "(default: until it is back)",
    )
    parser.add_argument(
        "--take-over",
        action="store_true",
        help="kill any process that still holds --log-dir, such as a stopped predecessor",
    )
    parser.add_argument(
        "--recover",
        metavar="DIRECTORY",
        default="",
        help="replace the durable server that used this --log-dir, with its address, index "
        "and all other settings; other flags are ignored",
    )
    parser.add_argument("--spare", action="store_true", help=argparse.SUPPRESS)  # set by a launcher


def add_replica_flags(parser: argparse.ArgumentParser) -> None:
    """Add all flags except --transport and --log-level."""
    parser.add_argument(
        "--endpoint",
        metavar="HOST:PORT",
        default="127.0.0.1:9200",
        help="address to listen on; port 0 picks a free port (default %(default)s: this machine "
        "only)",
    )
    parser.add_argument(
        "--log-dir",
        metavar="DIRECTORY",
        default="",
        help="where copies are kept, with the log of server K in server-K (default: replica in "
        "SPARSEFLEET_LOG_DIR)",
    )
    parser.add_argument(
        "--durability",
        choices=("process", "disk"),
        default="disk",
        help="answer when records are on disk (disk, the default) or written (process)",
    )


def _add_connection_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max-connections",
        type=int,
        default=10_000,
        metavar="N",
        help="accept at most N connections from workers (default 10000). The server raises its "
        "soft limit on open files; if the hard limit (ulimit -Hn) is too low, it accepts fewer",
    )
    parser.add_argument(
        "--max-unproven",
        type=int,
        default=0,
        metavar="N",
        help="keep at most N connections that have not proven the job key yet; the oldest is "
        "dropped for a new one (default: a quarter of --max-connections, at most 512)",
    )
    parser.add_argument(
        "--max-unproven-per-address",
        type=int,
        default=0,
        metavar="N",
        help="limit on such connections per IPv4 address or IPv6 /64 network (default: half of "
        "--max-unproven)",
    )
    parser.add_argument(
        "--handshake-timeout",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="drop connections that have not proven the job key within this time (default 10)",
    )


def server_config(options: argparse.Namespace) -> ServerConfig | None:
    """Return the configuration of the server to run, or None for a spare that was not needed.

    Raises ConfigError.
    """
    recovered = await_order() if options.spare else options.recover
    if recovered:
        return predecessor_config(recovered)
    return None if options.spare else _asked_for(options)


def replica_config(options: argparse.Namespace) -> ReplicaConfig:
    """Return the configuration of the replica that the flags describe. Raises ConfigError."""
    return ReplicaConfig(
        endpoint=options.endpoint,
        log_dir=options.log_dir or replica_place(),
        durability=options.durability,
        transport=options.transport,
    )


def _asked_for(options: argparse.Namespace) -> ServerConfig:
    index, num_servers, endpoint = options.index, options.num_servers, options.endpoint
    if index is None and num_servers is None and not endpoint:
        role = role_from_environment()
        if role.is_server:
            index, num_servers, endpoint = role.index, role.server_num, role.current_endpoint
    index = index or 0
    return ServerConfig(
        endpoint=endpoint or "127.0.0.1:9100",
        index=index,
        num_servers=1 if num_servers is None else num_servers,
        transport=options.transport,
        num_threads=options.threads,
        max_frame_bytes=min(options.max_frame_mb << 20, 2**32 - 1),
        max_connections=options.max_connections,
        max_unproven_connections=options.max_unproven,
        max_unproven_per_address=options.max_unproven_per_address,
        handshake_timeout_s=options.handshake_timeout,
        peer_timeout_s=options.peer_timeout,
        save_root=options.save_root,
        durability=options.durability,
        log_dir=options.log_dir or durable_settings(index)["log_dir"],
        replica=options.replica or durable_settings(index)["replica"],
        replica_wait_s=options.replica_wait,
        take_over=options.take_over,
        metrics=options.metrics,
    )
