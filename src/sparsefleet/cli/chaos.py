"""The command `sparsefleet chaos`."""

from __future__ import annotations

import argparse
import json
import os
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace

from sparsefleet.checkpoint import Checkpoint, list_checkpoints
from sparsefleet.cli.launch import launch_config
from sparsefleet.errors import ConfigError, SparseFleetError
from sparsefleet.launch.chaos import ChaosConfig, ChaosReport, run_chaos
from sparsefleet.launch.launch_config import LaunchConfig

__all__ = ["CHAOS_DESCRIPTION", "CHAOS_EPILOG", "add_chaos_flags", "run_chaos_command"]

CHAOS_DESCRIPTION = """\
Runs a job on this machine and injects faults into it: kills or suspends processes, cuts or slows
down the network between workers and servers, or makes the servers' disk look full. Afterwards it
checks that the job succeeded, that no process is left and that checkpoints can be read. It prints a
report, and exits with 0 if all checks pass. The same seed gives the same faults.
"""
CHAOS_EPILOG = """\
examples:
  sparsefleet chaos --ledger --mode sync --kill servers --for 1m
  sparsefleet chaos --every 5s --seed 7 -- launch --servers 2 --workers 2 train.py
  sparsefleet chaos --kill servers --partition --for 10m --checkpoints ckpt -- launch train.py

--ledger needs no script: it trains records that each add 1 to a row of their own, and counts those
that are missing or were trained twice.
"""
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)?")
_UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}
_UNLIMITED = 1_000_000


def add_chaos_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `sparsefleet chaos`, and the argument with the job's own command line."""
    parser.add_argument(
        "--kill",
        nargs="?",
        const="servers,workers",
        metavar="ROLES",
        help="processes to kill with SIGKILL: servers, workers, or both (servers,workers); "
        "the default fault",
    )
    parser.add_argument(
        "--pause",
        nargs="?",
        const="servers,workers",
        metavar="ROLES",
        help="send SIGSTOP, then SIGCONT after a while",
    )
    parser.add_argument(
        "--partition", action="store_true", help="cut off a server from the network for a while"
    )
    parser.add_argument(
        "--delay", action="store_true", help="slow down a server's network for a while"
    )
    parser.add_argument(
        "--disk-full",
        action="store_true",
        help="make all of a server's file writes fail for a while",
    )
    parser.add_argument(
        "--every", default="5s", metavar="TIME", help="mean time between faults (default 5s)"
    )
    parser.add_argument(
        "--for",
        dest="duration",
        default="1m",
        metavar="TIME",
        help="inject faults for this long; the job then runs to completion (default 1m)",
    )
    parser.add_argument(
        "--fault-time",
        default="2s",
        metavar="TIME",
        help="mean length of a pause, partition, delay or full disk (default 2s)",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the schedule (default 0)")
    parser.add_argument(
        "--checkpoints",
        default="",
        metavar="DIRECTORY",
        help="verify the checkpoints in this directory afterwards",
    )
    parser.add_argument(
        "--report", default="", metavar="FILE", help="also write the report to FILE, as JSON"
    )
    _add_ledger_flags(parser)
    parser.add_argument(
        "job",
        metavar="launch ...",
        nargs=argparse.REMAINDER,
        help="the job: the arguments of `sparsefleet launch`, after --",
    )


def _add_ledger_flags(parser: argparse.ArgumentParser) -> None:
    ledger = parser.add_argument_group("a built-in job, instead of `-- launch ...`")
    ledger.add_argument("--ledger", action="store_true", help="run the ledger job")
    ledger.add_argument(
        "--mode",
        choices=("sync", "half_async", "async", "hybrid", "geo"),
        default="async",
        help="training mode of the ledger job (default async)",
    )
    ledger.add_argument(
        "--api",
        "--door",  # the name of the flag in version 0.1
        choices=("torch", "fluid"),
        default="torch",
        help="API of the ledger job (default torch)",
    )
    ledger.add_argument("--servers", type=int, default=2, help="number of servers (default 2)")
    ledger.add_argument("--workers", type=int, default=2, help="number of workers (default 2)")
    ledger.add_argument(
        "--batches", type=int, default=0, help="batches per worker (default: enough for --for)"
    )
    ledger.add_argument(
        "--pace-ms", type=float, default=20.0, help="milliseconds between batches (default 20)"
    )
    ledger.add_argument(
        "--durability",
        choices=("process", "disk"),
        default="process",
        help="durability of the servers",
    )


def run_chaos_command(
    options: argparse.Namespace, parse: Callable[[Sequence[str]], argparse.Namespace]
) -> int:
    """Run the command. `parse` parses the job's own command line. Raises ConfigError."""
    chaos = _chaos_config(options)
    with tempfile.TemporaryDirectory(prefix="sparsefleet-chaos-") as place:
        job = _ledger_job(options, chaos, place) if options.ledger else _given_job(options, parse)
        checks = [lambda report: _check_checkpoints(report, options.checkpoints)]
        report = run_chaos(
            job,
            chaos,
            checks=checks if options.checkpoints else (),
            ledger_path=os.path.join(place, "ledger.json") if options.ledger else "",
            has_begun=lambda: not options.ledger or _all_train(options.workers, place),
            note=lambda text: print(f"[chaos] {text}", flush=True),
        )
    if options.report:
        with open(options.report, "w", encoding="utf-8") as file:
            json.dump(report.to_json(), file, indent=2)
    for line in report.lines():
        print(f"[chaos] {line}", flush=True)
    return int(bool(report.problems))


def _all_train(num_workers: int, place: str) -> bool:
    return all(os.path.exists(os.path.join(place, f"begun-{k}")) for k in range(num_workers))


def _chaos_config(options: argparse.Namespace) -> ChaosConfig:
    flags = {"partition": options.partition, "delay": options.delay, "disk-full": options.disk_full}
    kinds = [kind for kind, is_on in flags.items() if is_on]
    kinds += [kind for kind in ("kill", "pause") if getattr(options, kind) is not None]
    if not kinds:
        kinds = ["kill"]
    chosen = options.kill or options.pause or "servers,workers"
    if options.kill and options.pause and options.kill != options.pause:
        raise ConfigError(
            f"--kill and --pause must name the same processes, got {options.kill!r} and "
            f"{options.pause!r}"
        )
    return ChaosConfig(
        kinds=tuple(sorted(kinds)),  # type: ignore[arg-type]
        roles=tuple(word.strip() for word in chosen.split(",")),  # type: ignore[misc]
        every_s=_seconds(options.every, "--every"),
        duration_s=_seconds(options.duration, "--for"),
        fault_s=_seconds(options.fault_time, "--fault-time"),
        seed=options.seed,
    )


def _given_job(
    options: argparse.Namespace, parse: Callable[[Sequence[str]], argparse.Namespace]
) -> LaunchConfig:
    words = options.job[1:] if options.job[:1] == ["--"] else options.job
    if words[:1] != ["launch"]:
        raise ConfigError(
            "expected a job as `-- launch ... SCRIPT`, with the arguments of `sparsefleet "
            f"launch`, or --ledger; got {' '.join(words) or 'nothing'!r}"
        )
    job = launch_config(parse(words))
    if job.nodes:
        raise ConfigError("--nodes cannot be used with chaos, which injects faults only locally")
    if job.max_restarts is not None or not job.is_durable:
        return job
    rule = "killed" if job.restart == "auto" else job.restart
    return replace(job, restart=rule, max_restarts=_UNLIMITED)


def _ledger_job(options: argparse.Namespace, chaos: ChaosConfig, place: str) -> LaunchConfig:
    if options.job:
        raise ConfigError(
            f"--ledger runs its own job and takes no other job, got {' '.join(options.job)!r}"
        )
    batches = options.batches or max(1, round(chaos.duration_s * 1e3 / options.pace_ms))
    words = ["--api", options.api, "--mode", options.mode, "--out", place]
    words += ["--batches", str(batches), "--pace-ms", str(options.pace_ms)]
    if options.checkpoints and options.api == "torch":
        words += ["--checkpoints", os.path.abspath(options.checkpoints)]
    return LaunchConfig(
        script="sparsefleet.cli.ledger",
        is_module=True,
        arguments=tuple(words),
        num_servers=options.servers,
        num_workers=options.workers,
        durability=options.durability,
        restart="killed",
        max_restarts=_UNLIMITED,
        log_dir=os.path.join(place, "logs"),
        set_variables=(("OMP_NUM_THREADS", "1"),),
    )


def _check_checkpoints(report: ChaosReport, directory: str) -> list[str]:
    del report
    problems = []
    for listed in list_checkpoints(directory):
        try:
            if listed.problem is not None:
                raise listed.problem
            found = list(Checkpoint.open(listed.path).problems(deep=True))
        except SparseFleetError as error:
            found = [error]  # type: ignore[list-item]
        problems += [f"checkpoint {listed.path}: {problem}" for problem in found]
    return problems


def _seconds(text: str, flag: str) -> float:
    """Return the number of seconds in a duration such as 500ms, 5s or 10m."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ConfigError(f"{flag} must be a time such as 500ms, 5s, 10m or 1h, got {text!r}")
    return float(found[1]) * _UNITS[found[2]]
