"""The commands `sparsefleet dashboard` and `sparsefleet top`."""

from __future__ import annotations

import argparse
import sys

__all__ = ["MONITOR_COMMANDS", "run_dashboard_command", "run_top_command"]

DASHBOARD_DESCRIPTION = """\
Shows a running job on a web page served by this machine, with its processes, curves, tables,
bottleneck and warnings. The job must have been started with `sparsefleet launch --metrics` or
`--dashboard`. Prints the page's address, which contains a token. Ctrl-C stops
the page, not the job.
"""
TOP_DESCRIPTION = """\
Shows a running job in the terminal, like the dashboard but without curves. The job must have
been started with `sparsefleet launch --metrics` or `--dashboard`. Ctrl-C stops the display, not the
job.
"""


def _add_job(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--job",
        default="logs",
        metavar="DIRECTORY",
        help="the --log-dir of the job (default %(default)s)",
    )


def add_dashboard_flags(parser: argparse.ArgumentParser) -> None:
    _add_job(parser)
    parser.add_argument(
        "--address",
        default="127.0.0.1:0",
        metavar="HOST:PORT",
        help="where the page is served (default %(default)s: this machine only, a free port)",
    )


def add_top_flags(parser: argparse.ArgumentParser) -> None:
    _add_job(parser)
    parser.add_argument(
        "--interval",
        type=float,
        default=1.0,
        metavar="SECONDS",
        help="time between two readings (default 1)",
    )
    parser.add_argument(
        "--once", action="store_true", help="print one screen and exit; the default in a pipe"
    )


MONITOR_COMMANDS = (
    ("dashboard", "show a running job on a web page", DASHBOARD_DESCRIPTION, add_dashboard_flags),
    ("top", "show a running job in the terminal", TOP_DESCRIPTION, add_top_flags),
)
"""The name, summary, description and flags of each command."""


def run_dashboard_command(options: argparse.Namespace) -> int:
    from sparsefleet.monitor.job_watch import serve_dashboard

    serve_dashboard(options.job, options.address)
    return 0


def run_top_command(options: argparse.Namespace) -> int:
    from rich.console import Console

    from sparsefleet.errors import ConfigError
    from sparsefleet.monitor.top import run_top

    if not options.interval >= 0.1:
        raise ConfigError(f"--interval must be at least 0.1 seconds, got {options.interval}")
    in_terminal = sys.stdout.isatty()
    console = Console(width=None if in_terminal else 140)
    run_top(options.job, console, interval_s=options.interval, once=options.once or not in_terminal)
    return 0
