"""The `sparsefleet` command.

Ends with 0 when all went well, 1 when something failed (one line says what), 2 when the
command line is wrong; `launch` hands on the code of the process that failed.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Sequence
from typing import get_args

from sparsefleet import __version__
from sparsefleet.checkpoint.command_line import (
    CHECKPOINT_DESCRIPTION,
    add_checkpoint_commands,
    run_checkpoint_command,
)
from sparsefleet.endpoint import parse_endpoint
from sparsefleet.errors import ConfigError, SparseFleetError
from sparsefleet.export_command import EXPORT_DESCRIPTION, add_export_flags, run_export_command
from sparsefleet.fluid_coverage_command import (
    FLUID_COVERAGE_DESCRIPTION,
    add_fluid_coverage_flags,
    run_fluid_coverage_command,
)
from sparsefleet.launch import (
    LAUNCH_DESCRIPTION,
    LAUNCH_EPILOG,
    add_launch_flags,
    launch_config,
    run_job,
)
from sparsefleet.predict_command import (
    PREDICT_DESCRIPTION,
    add_predict_flags,
    run_predict_command,
)
from sparsefleet.push_rows_command import (
    PUSH_ROWS_DESCRIPTION,
    add_push_rows_flags,
    run_push_rows_command,
)
from sparsefleet.serve_command import (
    SERVE_DESCRIPTION,
    SWITCH_DESCRIPTION,
    add_serve_flags,
    add_switch_flags,
    run_serve_command,
    run_switch_command,
)
from sparsefleet.server import ServerConfig, TransportName, run_server
from sparsefleet.verify_command import VERIFY_DESCRIPTION, add_verify_flags, run_verify_command

__all__ = ["main"]

_KEY_HELP = """\
The job key, which servers and workers must share, comes from SPARSEFLEET_JOB_KEY, else from
the file named by SPARSEFLEET_JOB_KEY_FILE, else, where every endpoint is on this machine, from
your own key file (~/.config/sparsefleet/job.key), made on first use.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
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
    """A command line that cannot be meant."""


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sparsefleet",
        description="A parameter server for PyTorch on CPUs.",
        epilog="`sparsefleet COMMAND --help` explains a command.",
    )
    parser.add_argument("--version", action="version", version=f"sparsefleet {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_server_command(commands)
    _add_stats_command(commands)
    _add_launch_command(commands)
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
        help="auto: TLS 1.3 with the job key over the network, shared memory within a host "
        "(default); tls: TLS everywhere; plain: the key is proven, but nothing is encrypted. "
        "With plain servers and workers must agree",
    )
    return parser


def _add_log_level(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default=default,
        help=f"what goes to stderr; debug adds tracebacks to errors (default {default})",
    )


def _add_server_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _add_command(
        commands,
        "server",
        "run one server",
        "Runs one server until SIGTERM, SIGINT (Ctrl-C) or a client's shutdown request; it then\n"
        "finishes the requests under way and exits with 0. Prints one line when it is ready.",
    )
    parser.add_argument(
        "--endpoint",
        metavar="HOST:PORT",
        default="127.0.0.1:9100",
        help="where to listen; port 0 takes a free one (default %(default)s: this machine only)",
    )
    parser.add_argument(
        "--index",
        type=int,
        default=0,
        help="this server's place in the workers' list of endpoints, from 0 (default 0)",
    )
    parser.add_argument(
        "--num-servers", type=int, default=1, help="servers in the fleet (default 1)"
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=0,
        help="threads that carry out requests (default: one a core, at most 8)",
    )
    parser.add_argument(
        "--max-frame-mb",
        type=int,
        default=256,
        help="refuse larger requests and replies, in MiB (default 256)",
    )
    parser.add_argument(
        "--peer-timeout",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="a worker silent for this long counts as lost (default 10)",
    )
    parser.add_argument(
        "--save-root",
        metavar="DIRECTORY",
        default="",
        help="allow save and load commands only below this directory (default: anywhere)",
    )
    _add_log_level(parser, "info")


def _add_stats_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _add_command(
        commands, "stats", "show the statistics of running servers", "Shows what servers count."
    )
    parser.add_argument(
        "--endpoints",
        metavar="HOST:PORT",
        nargs="+",
        required=True,
        help="all servers of the fleet, in order, apart by spaces or commas",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="give up after this long (default 10)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print a JSON list, one object a server"
    )
    _add_log_level(parser, "error")


def _add_launch_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _add_command(
        commands, "launch", "run a job of servers and workers", LAUNCH_DESCRIPTION
    )
    parser.epilog = LAUNCH_EPILOG
    _add_log_level(parser, "warning")
    add_launch_flags(parser)


def _add_file_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Those that work on files alone: no transport, no key."""
    for name, summary, description, add_flags in (
        (
            "checkpoint",
            "look into checkpoints, compare and convert them",
            CHECKPOINT_DESCRIPTION,
            add_checkpoint_commands,
        ),
        ("predict", "predict with an exported model", PREDICT_DESCRIPTION, add_predict_flags),
        ("export", "look at an exported model", EXPORT_DESCRIPTION, add_export_flags),
        (
            "fluid-coverage",
            "show which names of Fluid are here",
            FLUID_COVERAGE_DESCRIPTION,
            add_fluid_coverage_flags,
        ),
        (
            "push-rows",
            "load the rows of an exported model into Redis; choose which version is served",
            PUSH_ROWS_DESCRIPTION,
            add_push_rows_flags,
        ),
        ("serve", "predict over HTTP", SERVE_DESCRIPTION, add_serve_flags),
        ("serve-switch", "switch a service's version", SWITCH_DESCRIPTION, add_switch_flags),
        ("verify", "is what is online what was trained?", VERIFY_DESCRIPTION, add_verify_flags),
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
    try:
        config = ServerConfig(
            endpoint=options.endpoint,
            index=options.index,
            num_servers=options.num_servers,
            transport=options.transport,
            num_threads=options.threads,
            max_frame_bytes=min(options.max_frame_mb << 20, 2**32 - 1),
            peer_timeout_s=options.peer_timeout,
            save_root=os.path.abspath(options.save_root) if options.save_root else "",
        )
    except ConfigError as error:
        raise _UsageError(str(error)) from error
    run_server(config)
    return 0


def _run_launch_command(options: argparse.Namespace) -> int:
    try:
        config = launch_config(options)
    except ConfigError as error:
        raise _UsageError(str(error)) from error
    return run_job(config)


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
    names = sorted({name for server in stats for name in server})
    for name in names:
        table.add_row(name, *(_show(server.get(name)) for server in stats))
    # In a pipe there is no width to fit into: nothing is cut short.
    width = None if sys.stdout.isatty() else 20 + max(map(len, names), default=0) + 26 * len(stats)
    Console(width=width).print(table)


def _show(number: float | None) -> str:
    if number is None:
        return "-"
    return f"{number:,.0f}" if number == int(number) else f"{number:,.3f}"


_COMMANDS = {
    "checkpoint": _run_checkpoint_command,
    "export": run_export_command,
    "fluid-coverage": run_fluid_coverage_command,
    "launch": _run_launch_command,
    "predict": run_predict_command,
    "push-rows": _run_push_rows_command,
    "serve": run_serve_command,
    "serve-switch": run_switch_command,
    "server": _run_server_command,
    "stats": _run_stats_command,
    "verify": run_verify_command,
}


if __name__ == "__main__":
    sys.exit(main())
