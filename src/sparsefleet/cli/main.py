"""The `sparsefleet` command.

Exit codes are 0 for success, 1 for a failure (reported in one line) and 2 for an invalid command
line; `launch` exits with the code of the process that failed.
"""

from __future__ import annotations

import argparse
import difflib
import json
import logging
import sys
from collections.abc import Iterable, Sequence
from typing import Any, get_args

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
    launch_on_ray,
)
from sparsefleet.cli.manifest import (
    MANIFEST_DESCRIPTION,
    MANIFEST_EPILOG,
    add_manifest_commands,
    run_manifest_command,
)
from sparsefleet.cli.monitor import MONITOR_COMMANDS, run_dashboard_command, run_top_command
from sparsefleet.cli.plan import PLAN_DESCRIPTION, add_plan_flags, run_plan_command
from sparsefleet.cli.predict import PREDICT_DESCRIPTION, add_predict_flags, run_predict_command
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
from sparsefleet.cli.server import (
    REPLICA_DESCRIPTION,
    SERVER_DESCRIPTION,
    add_replica_flags,
    add_server_flags,
    replica_config,
    server_config,
)
from sparsefleet.cli.verify import VERIFY_DESCRIPTION, add_verify_flags, run_verify_command
from sparsefleet.endpoint import parse_endpoint
from sparsefleet.errors import ConfigError, SparseFleetError
from sparsefleet.launch import run_job
from sparsefleet.server import run_replica, run_server
from sparsefleet.server.run_server import TransportName

__all__ = ["main", "make_parser"]

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
  verify MODEL_DIR          does the online service match the exported model and training?

which export?
  checkpoint export PATH    write a table of a checkpoint to a Parquet or CSV file
  export show DIRECTORY     show what an exported model (Trainer.export) contains
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = make_parser()
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
    """Raised for an invalid command line."""


class _CommandParser(argparse.ArgumentParser):
    """A parser whose errors name the command and suggest the option or choice that was meant."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        options, unknown = self.parse_known_args(args, namespace)
        if unknown:
            command_parser: _CommandParser = getattr(options, "parser", self)
            command_parser.error(_unknown_options(unknown, command_parser.option_names(options)))
        return options

    def option_names(self, options: argparse.Namespace) -> list[str]:
        """Return the options of this command and of its subcommand in `options`, if any."""
        names = list(self._option_string_actions)
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                below = action.choices.get(str(getattr(options, action.dest, None)))
                names += [] if below is None else below.option_names(options)
        return names

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            error.message += _suggestion(str(value), map(str, action.choices or ()))
            raise


def _unknown_options(unknown: Sequence[str], names: Iterable[str]) -> str:
    names = list(names)
    first = next((text for text in unknown if text.startswith("-")), "").partition("=")[0]
    return f"unrecognized arguments: {' '.join(unknown)}{_suggestion(first, names)}"


def _suggestion(found: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(found, list(names), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def make_parser() -> argparse.ArgumentParser:
    """Return the parser for all commands."""
    parser: argparse.ArgumentParser = _CommandParser(
        prog="sparsefleet",
        description="A parameter server for PyTorch on CPUs.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"sparsefleet {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_server_commands(commands)
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


def _add_server_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _add_command(commands, "server", "run one server", SERVER_DESCRIPTION)
    add_server_flags(parser)
    _add_log_level(parser, "info")
    summary = "keep copies of the logs of durable servers"
    parser = _add_command(commands, "replica", summary, REPLICA_DESCRIPTION)
    add_replica_flags(parser)
    _add_log_level(parser, "info")


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
        help="inject faults into a job and check its invariants afterwards",
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
        (
            "manifest",
            "write a job as a file for Slurm or Kubernetes",
            MANIFEST_DESCRIPTION + "\n" + MANIFEST_EPILOG,
            add_manifest_commands,
        ),
        *MONITOR_COMMANDS,
        ("plan", "size a fleet; try a script in each mode", PLAN_DESCRIPTION, add_plan_flags),
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
            "switch a service to a different version",
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


def _run_manifest_command(options: argparse.Namespace) -> int:
    try:
        return run_manifest_command(options)
    except ConfigError as error:
        raise _UsageError(str(error)) from error


def _run_push_rows_command(options: argparse.Namespace) -> int:
    try:
        return run_push_rows_command(options)
    except ConfigError as error:
        raise _UsageError(str(error)) from error


def _run_server_command(options: argparse.Namespace) -> int:
    try:
        config = server_config(options)
    except ConfigError as error:
        raise _UsageError(str(error)) from error
    if config is not None:
        run_server(config)
    return 0


def _run_replica_command(options: argparse.Namespace) -> int:
    try:
        config = replica_config(options)
    except ConfigError as error:
        raise _UsageError(str(error)) from error
    run_replica(config)
    return 0


def _run_launch_command(options: argparse.Namespace) -> int:
    try:
        config = launch_config(options)
        if options.on == "ray":
            return launch_on_ray(config, options)
    except ConfigError as error:
        raise _UsageError(str(error)) from error
    return run_job(config)


def _run_chaos_command(options: argparse.Namespace) -> int:
    try:
        return run_chaos_command(options, lambda words: make_parser().parse_args(words))
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
    # Histogram buckets are shown only by --json and Prometheus.
    names = sorted({name for server in stats for name in server if ".le." not in name})
    for name in names:
        table.add_row(name, *(_show(server.get(name)) for server in stats))
    # A pipe has no width to fit into, so make the table wide enough that nothing is truncated.
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
    "manifest": _run_manifest_command,
    "plan": run_plan_command,
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
