"""The flags of `sparsefleet launch`."""

from __future__ import annotations

import argparse

from sparsefleet.errors import ConfigError
from sparsefleet.launch.launch_config import LaunchConfig

__all__ = ["LAUNCH_DESCRIPTION", "LAUNCH_EPILOG", "add_launch_flags", "launch_config"]

LAUNCH_DESCRIPTION = """\
Runs a script on this machine as a job of servers and workers, each a process with a log file
of its own. Every process runs the same script and finds its role in its environment. Servers
are ended when all workers are done. A process that fails ends the job; its last lines are
shown and its exit code is that of this command. However this command ends, no process of the
job stays behind.
"""
LAUNCH_EPILOG = """\
examples:
  sparsefleet launch --servers 2 --workers 2 train.py --epochs 3
  sparsefleet launch --workers 4 --native-servers -m my_package.train
  sparsefleet launch --servers 0 --workers 4 --max-restarts 3 train_collective.py
  sparsefleet launch --nodes host1,host2 --node-rank 0 --start-port 9100 train.py

A random job key is made for each job, unless SPARSEFLEET_JOB_KEY or SPARSEFLEET_JOB_KEY_FILE
is set; on several nodes one of these must be, to the same key.
"""


def add_launch_flags(parser: argparse.ArgumentParser) -> None:
    """All flags but --transport and --log-level, which the commands have in common."""
    _add_job_flags(parser)
    _add_node_flags(parser)
    _add_output_flags(parser)
    parser.add_argument(
        "-m",
        dest="is_module",
        action="store_true",
        help="SCRIPT is the name of a module, as for `python -m`",
    )
    parser.add_argument("script", metavar="SCRIPT", help="Python script to run")
    parser.add_argument(
        "arguments", metavar="...", nargs=argparse.REMAINDER, help="handed to the script"
    )


def _add_job_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--servers",
        type=int,
        default=1,
        help="number of servers (default 1); 0: workers train collectively",
    )
    parser.add_argument("--workers", type=int, default=1, help="number of workers (default 1)")
    parser.add_argument(
        "--native-servers",
        action="store_true",
        help="servers run `sparsefleet server` instead of SCRIPT, which then is for workers only",
    )
    parser.add_argument(
        "--start-port",
        type=int,
        default=0,
        metavar="PORT",
        help="servers listen at PORT, PORT+1 ... (default: free ports)",
    )
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="environment variable for all processes; may be repeated",
    )
    parser.add_argument(
        "--keep-going",
        action="store_true",
        help="go on without a worker that fails, as long as one is left",
    )
    parser.add_argument(
        "--max-restarts",
        type=int,
        default=0,
        metavar="N",
        help="start all processes anew when one fails, at most N times (default 0); a Trainer "
        "with resume='auto' goes on from its last checkpoint",
    )
    parser.add_argument(
        "--grace-seconds",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="from asking a process to end to killing it (default 10)",
    )


def _add_node_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--nodes",
        default="",
        metavar="HOST,HOST",
        help="all machines of the job; give this command on each. --servers and --workers are "
        "dealt over them, the first ones getting more. Needs --start-port",
    )
    parser.add_argument(
        "--node-rank",
        type=int,
        default=0,
        metavar="K",
        help="which of --nodes this machine is, from 0",
    )
    parser.add_argument(
        "--join-seconds",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="all nodes must have been started within this (default 300)",
    )


def _add_output_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--log-dir",
        default="logs",
        metavar="DIRECTORY",
        help="gets serverlog.0, workerlog.0 and so on (default logs)",
    )
    parser.add_argument("--quiet", action="store_true", help="show failures only")
    parser.add_argument(
        "--show",
        default="",
        metavar="PROCESS",
        help="show all that this process prints, also with --quiet: worker.0, server.1, or all",
    )


def launch_config(options: argparse.Namespace) -> LaunchConfig:
    """The job that the flags describe. Raises ConfigError."""
    return LaunchConfig(
        script=options.script,
        arguments=tuple(options.arguments),
        is_module=options.is_module,
        num_servers=options.servers,
        num_workers=options.workers,
        log_dir=options.log_dir,
        transport=options.transport,
        start_port=options.start_port,
        nodes=tuple(host.strip() for host in options.nodes.split(",")) if options.nodes else (),
        node_rank=options.node_rank,
        native_servers=options.native_servers,
        keep_going=options.keep_going,
        max_restarts=options.max_restarts,
        quiet=options.quiet,
        show=options.show,
        grace_s=options.grace_seconds,
        join_timeout_s=options.join_seconds,
        set_variables=tuple(_assignment(text) for text in options.env),
    )


def _assignment(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise ConfigError(f"--env must be NAME=VALUE, got {text!r}")
    return name, value
