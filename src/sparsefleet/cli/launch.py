"""The flags of `sparsefleet launch`."""

from __future__ import annotations

import argparse
import os
from typing import get_args

from sparsefleet.cli.option_names import naming_options
from sparsefleet.errors import ConfigError
from sparsefleet.launch.launch_config import DurabilityName, LaunchConfig, RestartName

__all__ = [
    "LAUNCH_DESCRIPTION",
    "LAUNCH_EPILOG",
    "add_launch_flags",
    "assignment",
    "launch_config",
    "launch_on_ray",
]

LAUNCH_DESCRIPTION = """\
Runs a script on this machine as a job of servers and workers, each in its own process with its own
log file. All processes run the same script and read their role from the environment. Servers are
stopped when all workers are done. A process that is killed is restarted alone if it can continue;
any other failure stops the job: the last lines of the failed process are shown, and this command
exits with its code. However this command exits, it leaves no process behind.
"""
LAUNCH_EPILOG = """\
examples:
  sparsefleet launch --servers 2 --workers 2 train.py --epochs 3
  sparsefleet launch --workers 4 --native-servers -m my_package.train
  sparsefleet launch --servers 0 --workers 4 --max-restarts 3 train_collective.py
  sparsefleet launch --nodes host1,host2 --node-rank 0 --start-port 9100 train.py
  sparsefleet launch --on ray --address 10.0.0.1:6379 --servers 2 --workers 4 train.py

Each job gets a random job key unless SPARSEFLEET_JOB_KEY or SPARSEFLEET_JOB_KEY_FILE is set. On
several nodes, one of these must be set to the same key everywhere.

Security: the key protects everything between servers and workers. Without servers (--servers 0)
workers talk over torch.distributed, which neither encrypts nor authenticates: with --nodes, anyone
who can reach their ports can read and change the model. Use a private network and name its
interface in GLOO_SOCKET_IFNAME, or gloo's TLS (GLOO_DEVICE_TRANSPORT=TCP_TLS and its variables) if
your torch supports it; set them in the environment or with --env. See docs/collective.md.
"""


def add_launch_flags(parser: argparse.ArgumentParser) -> None:
    """Add all flags except --transport and --log-level, which are common to several commands."""
    _add_job_flags(parser)
    _add_node_flags(parser)
    _add_ray_flags(parser)
    _add_output_flags(parser)
    parser.add_argument(
        "-m",
        dest="is_module",
        action="store_true",
        help="SCRIPT is the name of a module, as for `python -m`",
    )
    parser.add_argument("script", metavar="SCRIPT", help="Python script to run")
    parser.add_argument(
        "arguments", metavar="...", nargs=argparse.REMAINDER, help="arguments of the script"
    )


def _add_job_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--servers",
        type=int,
        default=1,
        help="number of servers (default 1); 0: workers train collectively, over connections that "
        "are neither encrypted nor authenticated (see below)",
    )
    parser.add_argument("--workers", type=int, default=1, help="number of workers (default 1)")
    parser.add_argument(
        "--native-servers",
        action="store_true",
        help="servers run `sparsefleet server`; only workers run SCRIPT",
    )
    parser.add_argument(
        "--start-port",
        type=int,
        default=0,
        metavar="PORT",
        help="servers listen on PORT, PORT+1, ... (default: free ports)",
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
        help="continue without failed workers as long as at least one is left",
    )
    parser.add_argument(
        "--restart",
        choices=get_args(RestartName),
        default="auto",
        help="what to restart when a process fails. killed: that process alone, if a signal "
        "killed it (kill -9, out of memory, crash) or if it is a server that has served; "
        "failed: that process alone, even after an error, and it then repeats its epoch; "
        "all: every process, and a Trainer with resume='auto' resumes from its last "
        "checkpoint. auto (default): killed with durable servers, and all for other "
        "failures if --max-restarts is given; all with --durability off or --servers 0",
    )
    parser.add_argument(
        "--max-restarts",
        type=int,
        default=None,
        metavar="N",
        help="restart a process at most N times within five minutes (default 20); with "
        "--restart all, restart the job at most N times (default 0). A process that "
        "fails three times in a row right after its start, without being killed, is not "
        "restarted again",
    )
    parser.add_argument(
        "--grace-seconds",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="time between SIGTERM and SIGKILL (default 10)",
    )


def _add_node_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--nodes",
        default="",
        metavar="HOST,HOST",
        help="all machines in the job; run this command on each of them. --servers and --workers "
        "are spread over them; the first nodes may get one more. Requires --start-port",
    )
    parser.add_argument(
        "--node-rank",
        type=int,
        default=0,
        metavar="K",
        help="index of this machine in --nodes, from 0",
    )
    parser.add_argument(
        "--join-seconds",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="time limit for starting all nodes (default 300)",
    )


def _add_ray_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("on a Ray cluster (extra `ray`, see docs/ray.md)")
    group.add_argument(
        "--on",
        choices=("machine", "ray"),
        default="machine",
        help="where processes run: on this machine (default), or as actors in a Ray cluster",
    )
    group.add_argument(
        "--address",
        default="",
        metavar="HOST:PORT",
        help="the Ray cluster (default: RAY_ADDRESS, or one on this machine, or a new one)",
    )
    group.add_argument(
        "--job",
        default="",
        metavar="NAME",
        help="name of the job. If this command is killed, the same command with the same name and "
        "--log-dir continues the job",
    )
    group.add_argument(
        "--server-memory",
        default="0",
        metavar="SIZE",
        help="memory that Ray reserves for each server, such as 8GiB (default: none)",
    )
    group.add_argument(
        "--server-cpus", type=float, default=1.0, help="CPUs of each server (default 1)"
    )
    group.add_argument(
        "--worker-cpus", type=float, default=1.0, help="CPUs of each worker (default 1)"
    )
    group.add_argument(
        "--worker-placement",
        choices=("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"),
        default="PACK",
        help="pack workers onto few nodes (default) or spread them out; servers are always spread",
    )


def _add_output_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--log-dir",
        default="logs",
        metavar="DIRECTORY",
        help="directory for serverlog.0, workerlog.0, ... (default logs)",
    )
    parser.add_argument(
        "--state-dir",
        default="",
        metavar="DIRECTORY",
        help="keep the servers' logs here until the job succeeds; if the job is stopped early, "
        "start it with the same directory to continue (default: a new directory, removed "
        "at the end)",
    )
    parser.add_argument(
        "--durability",
        choices=get_args(DurabilityName),
        default=os.environ.get("SPARSEFLEET_DURABILITY", "process"),
        help="failures that acknowledged changes survive: off (none), process (kill -9 of "
        "a server; the default), disk (also power loss) or replica (the loss of a server's "
        "machine: each node runs a `sparsefleet replica` for the servers of the node before it)",
    )
    parser.add_argument("--quiet", action="store_true", help="show failures only")
    parser.add_argument(
        "--show",
        default="",
        metavar="PROCESS",
        help="print the output of this process, even with --quiet: worker.0, server.1, or all",
    )
    parser.add_argument(
        "--metrics",
        default=os.environ.get("SPARSEFLEET_METRICS", ""),
        metavar="HOST:PORT",
        help="serve the metrics of all processes for Prometheus at http://HOST:PORT/metrics; port "
        "0 picks a free port, and LOG_DIR/metrics/targets.json lists every process (default: "
        "SPARSEFLEET_METRICS, else none)",
    )
    parser.add_argument(
        "--dashboard",
        action="store_true",
        help="show the job on a web page served by this machine, and print its address",
    )
    parser.add_argument(
        "--dashboard-address",
        default="127.0.0.1:0",
        metavar="HOST:PORT",
        help="where --dashboard listens (default %(default)s: this machine only, a free port)",
    )
    parser.add_argument(
        "--otlp",
        default=os.environ.get("SPARSEFLEET_OTLP", ""),
        metavar="URL",
        help="push the metrics of all processes to an OpenTelemetry collector, such as "
        "http://127.0.0.1:4318 (needs sparsefleet[otel]; default: SPARSEFLEET_OTLP, else none)",
    )


def launch_config(options: argparse.Namespace) -> LaunchConfig:
    """Return the job described by the flags. Raises ConfigError."""
    with naming_options(
        "LaunchConfig",
        num_servers="--servers",
        num_workers="--workers",
        grace_s="--grace-seconds",
        join_timeout_s="--join-seconds",
        script="SCRIPT",
    ):
        return LaunchConfig(
            script=options.script,
            arguments=tuple(options.arguments),
            is_module=options.is_module,
            num_servers=options.servers,
            num_workers=options.workers,
            log_dir=options.log_dir,
            transport=options.transport,
            durability=options.durability,
            state_dir=options.state_dir,
            start_port=options.start_port,
            nodes=tuple(host.strip() for host in options.nodes.split(",")) if options.nodes else (),
            node_rank=options.node_rank,
            native_servers=options.native_servers,
            keep_going=options.keep_going,
            restart=options.restart,
            max_restarts=options.max_restarts,
            quiet=options.quiet,
            show=options.show,
            grace_s=options.grace_seconds,
            join_timeout_s=options.join_seconds,
            set_variables=tuple(assignment(text) for text in options.env),
            metrics="" if options.metrics in ("off", "0") else options.metrics,
            dashboard=options.dashboard_address if options.dashboard else "",
            otlp="" if options.otlp in ("off", "0") else options.otlp,
        )


def launch_on_ray(config: LaunchConfig, options: argparse.Namespace) -> int:
    """Run the job on a Ray cluster; return the exit code. Raises ConfigError."""
    try:
        import sparsefleet.ray  # noqa: F401  (its error says what to install)
    except ImportError as error:
        raise ConfigError(str(error)) from error
    from sparsefleet.launch.ray.script_job import RayLaunch, run_on_ray

    with (
        naming_options("RayLaunch", name="--job"),
        naming_options("Servers", num_cpus="--server-cpus", memory="--server-memory"),
    ):
        on_ray = RayLaunch(
            address=options.address,
            name=options.job,
            server_memory=options.server_memory,
            server_cpus=options.server_cpus,
            worker_cpus=options.worker_cpus,
            worker_placement=options.worker_placement,
        )
        return run_on_ray(config, on_ray)


def assignment(text: str) -> tuple[str, str]:
    """Return the name and value of an --env flag. Raises ConfigError."""
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise ConfigError(f"--env must be NAME=VALUE, got {text!r}")
    return name, value
