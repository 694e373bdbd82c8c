"""`python -m sparsefleet.distributed.launch_ps`: Fluid's launcher, with its flags.

Starts all servers and workers on this machine. Unlike Fluid's launcher, it stops the whole job when
one process fails and returns that process's exit code. `sparsefleet launch` has more options.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from sparsefleet.errors import ConfigError, SparseFleetError
from sparsefleet.launch import LaunchConfig, run_job

__all__ = ["main"]

_FALSE_WORDS = ("false", "0", "no", "off")
_PROXIES = ("http_proxy", "https_proxy")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = _make_parser()
    options = parser.parse_args(arguments)
    if not options.print_config:
        print("launch_ps: --print_config is empty, so nothing is started")
        return 0
    try:
        config = _config(options)
    except ConfigError as error:
        parser.error(str(error))
    if options.print_config.lower() not in _FALSE_WORDS:
        _print_config(options, config)
    try:
        return run_job(config)
    except (SparseFleetError, OSError) as error:
        print(f"launch_ps: error: {error}", file=sys.stderr)
        return 1


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sparsefleet.distributed.launch_ps",
        description="Starts the servers and workers of a job on this machine.",
    )
    parser.add_argument("--worker_num", type=int, default=2, help="number of workers (default 2)")
    parser.add_argument(
        "--server_num",
        type=int,
        default=None,
        help="number of servers (default 2, or the number of --endpoints)",
    )
    parser.add_argument(
        "--start_port",
        type=int,
        default=6170,
        help="first port; servers listen on 127.0.0.1 on consecutive ports (default 6170)",
    )
    parser.add_argument(
        "--endpoints", default="", help="server addresses, HOST:PORT, comma-separated"
    )
    parser.add_argument(
        "--log_dir", default="logs", help="directory for one log per process (default logs)"
    )
    parser.add_argument("--cluster_node_ips", default="127.0.0.1", help="accepted but ignored")
    parser.add_argument("--node_ip", default="127.0.0.1", help="accepted but ignored")
    parser.add_argument(
        "--print_config",
        default="True",
        help="False: do not show the settings; empty: do not start anything, as in Fluid",
    )
    parser.add_argument("training_script", help="Python script to run in every process")
    parser.add_argument("training_script_args", nargs=argparse.REMAINDER)
    return parser


def _config(options: argparse.Namespace) -> LaunchConfig:
    endpoints = tuple(text.strip() for text in options.endpoints.split(",") if text.strip())
    num_servers = options.server_num
    if num_servers is None:
        num_servers = len(endpoints) or 2
    return LaunchConfig(
        script=options.training_script,
        arguments=tuple(options.training_script_args),
        num_servers=num_servers,
        num_workers=options.worker_num,
        log_dir=options.log_dir,
        start_port=0 if endpoints else options.start_port,
        endpoints=endpoints,
        unset_variables=_PROXIES,
        durability=os.environ.get("SPARSEFLEET_DURABILITY", "process"),  # type: ignore[arg-type]
    )


def _print_config(options: argparse.Namespace, config: LaunchConfig) -> None:
    print("-----------  Configuration Arguments -----------")
    for name, value in sorted(vars(options).items()):
        print(f"{name}: {config.num_servers if name == 'server_num' else value}")
    print("------------------------------------------------", flush=True)
    if "," in options.cluster_node_ips:
        print(
            "launch_ps: everything runs on this machine; for several machines, use sparsefleet "
            "launch --nodes",
            file=sys.stderr,
        )


if __name__ == "__main__":
    sys.exit(main())
