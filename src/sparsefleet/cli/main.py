"""The `sparsefleet` command.

Exit codes: 0 for success, 1 for a failure (one line says which), 2 for a wrong command line;
`launch` exits with the code of the process that failed.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import sys
from collections.abc import Sequence
from typing import get_args

from sparsefleet import __version__
from sparsefleet.cli.chaos import (
    CHAOS_DESCRIPTION,
    CHAOS_EPILOG,
    add_chaos_flags,
    run_chaos_command,
)
from sparsefleet.cli.checkpoint import (
    CHECKPOINT_DESCRIPTION,
    add_checkpoint_commands,
    run_checkpoint_command,
)
from sparsefleet.cli.export import EXPORT_DESCRIPTION, add_export_flags, run_export_command
from sparsefleet.cli.fluid_coverage import (
    FLUID_COVERAGE_DESCRIPTION,
    add_fluid_coverage_flags,
    run_fluid_coverage_command,
)
from sparsefleet.cli.launch import (
    LAUNCH_DESCRIPTION,
    LAUNCH_EPILOG,
    add_launch_flags,
    launch_config,
)
from sparsefleet.cli.monitor import MONITOR_COMMANDS, run_dashboard_command, run_top_command
from sparsefleet.cli.predict import (
    PREDICT_DESCRIPTION,
    add_predict_flags,
    run_predict_command,
)
from sparsefleet.cli.push_rows import (
    PUSH_ROWS_DESCRIPTION,
    add_push_rows_flags,
    run_push_rows_command,
)
from sparsefleet.cli.recipe import RECIPE_DESCRIPTION, add_recipe_commands, run_recipe_command
from sparsefleet.cli.serve import (
    SERVE_DESCRIPTION,
    SWITCH_DESCRIPTION,
    add_serve_flags,
    add_switch_flags,
    run_serve_command,
    run_switch_command,
)
from sparsefleet.cli.verify import VERIFY_DESCRIPTION, add_verify_flags, run_verify_command
from sparsefleet.endpoint import parse_endpoint
from sparsefleet.errors import ConfigError, SparseFleetError
from sparsefleet.launch import run_job
from sparsefleet.server import ReplicaConfig, ServerConfig, run_replica, run_server
from sparsefleet.server.run_replica import replica_place
from sparsefleet.server.run_server import (
    DurabilityName,
    TransportName,
    await_order,
    durable_settings,
    predecessor_config,
)

__all__ = ["main"]

_KEY_HELP = """\
Servers and workers must share the job key. It is read from SPARSEFLEET_JOB_KEY, or else from the
file named by SPARSEFLEET_JOB_KEY_FILE. If every endpoint is on this machine, your own key file
(~/.config/sparsefleet/job.key) is the default; it is created on first use.
"""
_EPILOG = """\
`sparsefleet COMMAND --help` explains a command.

which verify?
  checkpoint verify PATH    are the files of a checkpoint undamaged?
  export verify DIRECTORY   are the files of an exported model undamaged?
  verify MODEL_DIR          does what is online match the exported model and what was trained?

which export?
  checkpoint export PATH    write a table of a checkpoint to a Parquet or CSV file
  export show DIRECTORY     show what an exported model (Trainer.export) contains
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = _make_parser()
    options = parser.parse_args(arguments)
    logging.basicConfig(
        level=options.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    try:
        return _COMMANDS[options.command](options)
    except _UsageError as error:
        command_parser: argparse.ArgumentParser = options.parser
        command_parser.error(str(error))
    except (SparseFleetError, OSError) as error:
        if options.log_level == "debug":
            logging.getLogger("sparsefleet").exception("sparsefleet %s failed", options.command)
        print(f"sparsefleet {options.command}: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


class _UsageError(Exception):
    """A wrong command line."""


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sparsefleet",
        description="A parameter server for PyTorch on CPUs.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"sparsefleet {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_server_command(commands)
    _add_replica_command(commands)
    _add_stats_command(commands)
    _add_launch_command(commands)
    _add_chaos_command(commands)
    _add_file_commands(commands)
    return parser


def _add_command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    summary: str,
    description: str,
) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name,
        help=summary,
        description=description,
        epilog=_KEY_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(parser=parser)
    parser.add_argument(
        "--transport",
        choices=get_args(TransportName),
        default="auto",
        help="auto (default): TLS 1.3 with the job key over the network, shared memory within a "
        "host; tls: always TLS; plain: peers prove the key, but nothing is encrypted. plain must "
        "be set for both servers and workers",
    )
    return parser


def _add_log_level(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default=default,
        help=f"lowest level logged to stderr; debug adds tracebacks (default {default})",
    )


def _add_server_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _add_command(
        commands,
        "server",
        "run one server",
        "Runs one server until SIGTERM, SIGINT (Ctrl-C) or a client's shutdown request. It then\n"
        "finishes the requests in progress and exits with 0. Prints one line when it is ready.",
    )
    parser.add_argument(
        "--endpoint",
        metavar="HOST:PORT",
        default="127.0.0.1:9100",
        help="address to listen on; port 0 picks a free port (default %(default)s: this machine "
        "only)",
    )
    parser.add_argument(
        "--index",
        type=int,
        default=0,
        help="position of this server in the workers' list of endpoints, from 0 (default 0)",
    )
    parser.add_argument(
        "--num-servers", type=int, default=1, help="number of servers in the fleet (default 1)"
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
        help="where a durable server keeps its log and snapshots, and recovers them from; each "
        "server needs its own (default: server-INDEX in SPARSEFLEET_LOG_DIR)",
    )
    parser.add_argument(
        "--replica",
        metavar="HOST:PORT",
        default="",
        help="the `sparsefleet replica` that holds a copy of the log, for --durability replica "
        "(default: this server's entry of SPARSEFLEET_REPLICAS)",
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
        help="kill a process that still holds --log-dir, such as a stopped predecessor",
    )
    parser.add_argument(
        "--recover",
        metavar="DIRECTORY",
        default="",
        help="take the place of the durable server that used this --log-dir: its address, index "
        "and all other settings; further flags are ignored",
    )
    parser.add_argument("--spare", action="store_true", help=argparse.SUPPRESS)  # of a launcher
    _add_log_level(parser, "info")


def _add_replica_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _add_command(
        commands,
        "replica",
        "keep copies of the logs of durable servers",
        "Keeps copies of the logs of durable servers (`sparsefleet server --durability replica`),\n"
        "of which they recover when their machine is lost. Run it on another machine than theirs.\n"
        "It holds no tables in memory. Prints one line when it is ready; ends with SIGTERM.",
    )
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
        help="where the copies are kept, the log of server K in server-K (default: replica in "
        "SPARSEFLEET_LOG_DIR)",
    )
    parser.add_argument(
        "--durability",
        choices=("process", "disk"),
        default="disk",
        help="answer when records are on disk (disk, the default) or written (process)",
    )
    _add_log_level(parser, "info")


def _add_connection_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max-connections",
        type=int,
        default=10_000,
        metavar="N",
        help="accept at most N connections of workers (default 10000). The server raises its soft "
        "limit of open files; if the hard limit (ulimit -Hn) is too low, it accepts fewer",
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
        help="the same limit per IPv4 address or IPv6 /64 network (default: half of "
        "--max-unproven)",
    )
    parser.add_argument(
        "--handshake-timeout",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="drop connections that have not proven the job key by then (default 10)",
    )


def _add_stats_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _add_command(
        commands,
        "stats",
        "show the statistics of running servers",
        "Shows the counters of running servers.",
    )
    parser.add_argument(
        "--endpoints",
        metavar="HOST:PORT",
        nargs="+",
        required=True,
        help="all servers of the fleet, in order, separated by spaces or commas",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="give up after this long (default 10)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print a JSON list with one object per server"
    )
    _add_log_level(parser, "error")


def _add_launch_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _add_command(
        commands, "launch", "run a script as servers and workers", LAUNCH_DESCRIPTION
    )
    parser.epilog = LAUNCH_EPILOG
    _add_log_level(parser, "warning")
    add_launch_flags(parser)


def _add_chaos_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "chaos",
        help="inject faults into a job and check what must hold afterwards",
        description=CHAOS_DESCRIPTION,
        epilog=CHAOS_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(parser=parser)
    _add_log_level(parser, "warning")
    add_chaos_flags(parser)


def _add_file_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands that need neither a transport nor the job key."""
    for name, summary, description, add_flags in (
        (
            "checkpoint",
            "inspect, verify, compare and convert checkpoints",
            CHECKPOINT_DESCRIPTION,
            add_checkpoint_commands,
        ),
        *MONITOR_COMMANDS,
        ("predict", "predict with an exported model", PREDICT_DESCRIPTION, add_predict_flags),
        ("export", "inspect or verify an exported model", EXPORT_DESCRIPTION, add_export_flags),
        (
            "fluid-coverage",
            "list the supported Fluid names",
            FLUID_COVERAGE_DESCRIPTION,
            add_fluid_coverage_flags,
        ),
        (
            "push-rows",
            "load rows of an exported model into Redis; choose the served version",
            PUSH_ROWS_DESCRIPTION,
            add_push_rows_flags,
        ),
        (
            "recipe",
            "list, show and run recipes: data, model and settings that reproduce a result",
            RECIPE_DESCRIPTION,
            add_recipe_commands,
        ),
        ("serve", "serve predictions over HTTP", SERVE_DESCRIPTION, add_serve_flags),
        (
            "serve-switch",
            "switch a service to another version",
            SWITCH_DESCRIPTION,
            add_switch_flags,
        ),
        (
            "verify",
            "compare what is online with an exported model",
            VERIFY_DESCRIPTION,
            add_verify_flags,
        ),
    ):
        parser = commands.add_parser(
            name,
            help=summary,
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        parser.set_defaults(parser=parser)
        add_flags(parser)
        _add_log_level(parser, "warning")


def _run_checkpoint_command(options: argparse.Namespace) -> int:
    try:
        return run_checkpoint_command(options)
    except ConfigError as error:
        raise _UsageError(str(error)) from error


def _run_push_rows_command(options: argparse.Namespace) -> int:
    try:
        return run_push_rows_command(options)
    except ConfigError as error:
        raise _UsageError(str(error)) from error


def _run_server_command(options: argparse.Namespace) -> int:
    recovered = await_order() if options.spare else options.recover
    if options.spare and not recovered:
        return 0
    try:
        config = predecessor_config(recovered) if recovered else _server_config(options)
    except ConfigError as error:
        raise _UsageError(str(error)) from error
    run_server(config)
    return 0


def _run_replica_command(options: argparse.Namespace) -> int:
    try:
        config = ReplicaConfig(
            endpoint=options.endpoint,
            log_dir=options.log_dir or replica_place(),
            durability=options.durability,
            transport=options.transport,
        )
    except ConfigError as error:
        raise _UsageError(str(error)) from error
    run_replica(config)
    return 0


def _server_config(options: argparse.Namespace) -> ServerConfig:
    return ServerConfig(
        endpoint=options.endpoint,
        index=options.index,
        num_servers=options.num_servers,
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
        log_dir=options.log_dir or durable_settings(options.index)["log_dir"],
        replica=options.replica or durable_settings(options.index)["replica"],
        replica_wait_s=options.replica_wait,
        take_over=options.take_over,
        metrics=options.metrics,
    )


def _run_launch_command(options: argparse.Namespace) -> int:
    try:
        config = launch_config(options)
    except ConfigError as error:
        raise _UsageError(str(error)) from error
    return run_job(config)


def _run_chaos_command(options: argparse.Namespace) -> int:
    try:
        return run_chaos_command(options, lambda words: _make_parser().parse_args(words))
    except ConfigError as error:
        raise _UsageError(str(error)) from error


def _run_stats_command(options: argparse.Namespace) -> int:
    from sparsefleet.store import RemoteStore, RemoteStoreConfig

    endpoints = [text for group in options.endpoints for text in group.split(",") if text]
    try:
        for text in endpoints:
            parse_endpoint(text)
        config = RemoteStoreConfig(timeout_s=options.timeout, connect_timeout_s=options.timeout)
    except ConfigError as error:
        raise _UsageError(str(error)) from error
    with RemoteStore(endpoints, name="stats", transport=options.transport, config=config) as store:
        stats = store.stats()
    if options.json:
        print(json.dumps(stats, indent=2, sort_keys=True))
    else:
        _print_stats(endpoints, stats)
    return 0


def _print_stats(endpoints: Sequence[str], stats: Sequence[dict[str, float]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="sparsefleet servers")
    table.add_column("statistic", no_wrap=True)
    for endpoint in endpoints:
        table.add_column(endpoint, justify="right", no_wrap=True)
    # The buckets of histograms are for --json and Prometheus.
    names = sorted({name for server in stats for name in server if ".le." not in name})
    for name in names:
        table.add_row(name, *(_show(server.get(name)) for server in stats))
    # A pipe has no width to fit into: make the table wide enough to truncate nothing.
    width = None if sys.stdout.isatty() else 20 + max(map(len, names), default=0) + 26 * len(stats)
    Console(width=width).print(table)


def _show(number: float | None) -> str:
    if number is None:
        return "-"
    return f"{number:,.0f}" if number == int(number) else f"{number:,.3f}"


_COMMANDS = {
    "chaos": _run_chaos_command,
    "checkpoint": _run_checkpoint_command,
    "dashboard": run_dashboard_command,
    "export": run_export_command,
    "fluid-coverage": run_fluid_coverage_command,
    "launch": _run_launch_command,
    "predict": run_predict_command,
    "push-rows": _run_push_rows_command,
    "recipe": run_recipe_command,
    "replica": _run_replica_command,
    "serve": run_serve_command,
    "serve-switch": run_switch_command,
    "server": _run_server_command,
    "stats": _run_stats_command,
    "top": run_top_command,
    "verify": run_verify_command,
}


if __name__ == "__main__":
    sys.exit(main())
