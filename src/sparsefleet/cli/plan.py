"""`sparsefleet plan`: estimate how large a fleet a job needs and which mode suits it."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparsefleet.cli.option_names import naming_options
from sparsefleet.errors import ConfigError

if TYPE_CHECKING:
    from sparsefleet.planning.advice import Advice, ModePlan
    from sparsefleet.planning.data_sample import DataSample
    from sparsefleet.planning.mode_trial import ModeResult

__all__ = ["PLAN_DESCRIPTION", "add_plan_flags", "run_plan_command"]

PLAN_DESCRIPTION = """\
Estimates how many servers and workers a job needs, how much memory, network, disk and money, and
which mode suits it; or tries a script in each mode on this machine.

examples:
  sparsefleet plan --rows 2e9 --dim 16 --optimizer adagrad --batch 512 --examples-per-second 1e6
  sparsefleet plan --rows 1e8 --dim 32 --examples-per-second 2e5 --sample 'data/part-*' --price 0.8
  sparsefleet plan --calibrate my-machine.json
  sparsefleet plan --seconds 60 --modes local,sync,async --try train.py --epochs 1

The numbers come from a model of the fleet and measured costs of a machine (docs/planning.md). A
machine runs one worker process per core; every server has a machine of its own.
"""
_GIB = 2**30
_NOTE_LENGTH = 90
_OPTIONS = {
    "examples_per_s": "--examples-per-second",
    "ids_per_example": "--ids",
    "memory_gib": "--memory",
    "network_gbit": "--network",
    "price_per_hour": "--price",
}
"""Options of `PlanRequest`'s fields, where their names differ."""
_MODE_HEADS = ("mode", "workers", "servers", "machines", "examples/s", "network", "price", "why")


def add_plan_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags for planning, trials and calibration."""
    job = parser.add_argument_group("the job")
    job.add_argument(
        "--rows", type=_positive, help="total number of rows in all tables, such as 2e9"
    )
    job.add_argument("--dim", type=_count, help="floats per row")
    job.add_argument(
        "--optimizer", default="adagrad", help="optimizer of the tables (default adagrad)"
    )
    job.add_argument(
        "--row-dtype",
        choices=("float32", "bf16", "int8"),
        default="float32",
        help="how the tables store rows (default float32)",
    )
    job.add_argument("--batch", type=_count, default=512, help="examples per step (default 512)")
    job.add_argument(
        "--examples-per-second",
        type=_positive,
        default=100_000.0,
        metavar="RATE",
        help="target rate of the whole job (default 100000)",
    )
    job.add_argument(
        "--ids", type=_positive, default=None, help="ids per example, in all tables (default 26)"
    )
    job.add_argument(
        "--distinct",
        type=_positive,
        default=None,
        help="distinct ids in a batch, as a fraction of its ids (default 0.4)",
    )
    job.add_argument(
        "--dense",
        type=_number,
        default=430_000.0,
        help="parameters outside the tables (default 430000, a CTR-DNN)",
    )
    job.add_argument(
        "--compute-us",
        type=_positive,
        default=None,
        metavar="US",
        help="processor time per example in a worker (default: estimated)",
    )
    job.add_argument(
        "--sample",
        metavar="FILES",
        help="estimate ids, distinct ids and hot keys from these files, a path or pattern",
    )
    job.add_argument(
        "--format",
        dest="file_format",
        default="auto",
        help="format of --sample: multislot, criteo, csv, parquet or arrow (default: detected)",
    )
    job.add_argument("--label", default="", help="column of --sample that is not an id")
    _add_machine_flags(parser)
    _add_trial_flags(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def _add_machine_flags(parser: argparse.ArgumentParser) -> None:
    machines = parser.add_argument_group("the machines")
    machines.add_argument(
        "--machine",
        default="amd-epyc",
        help="costs of operations: a reference machine or a --calibrate file (default amd-epyc)",
    )
    machines.add_argument("--cores", type=_count, default=16, help="cores per machine (default 16)")
    machines.add_argument(
        "--memory", type=_positive, default=64.0, metavar="GIB", help="GiB per machine (default 64)"
    )
    machines.add_argument(
        "--network",
        type=_positive,
        default=25.0,
        metavar="GBIT",
        help="Gbit/s per machine (default 25)",
    )
    machines.add_argument(
        "--price", type=_positive, default=None, metavar="MONEY", help="price of a machine per hour"
    )
    machines.add_argument(
        "--headroom",
        type=_number,
        default=0.3,
        metavar="FRACTION",
        help="rows that will be added, as a fraction of --rows (default 0.3)",
    )
    machines.add_argument(
        "--calibrate",
        metavar="FILE",
        help="measure this machine (half a minute), write FILE for --machine, and use it",
    )


def _add_trial_flags(parser: argparse.ArgumentParser) -> None:
    trial = parser.add_argument_group("a trial")
    trial.add_argument(
        "--seconds", type=_positive, default=60.0, help="training time in each mode (default 60)"
    )
    trial.add_argument(
        "--modes", default="", metavar="MODE,MODE", help="modes to compare (default: all)"
    )
    trial.add_argument("--servers", type=_count, default=1, help="number of servers (default 1)")
    trial.add_argument("--workers", type=_count, default=2, help="number of workers (default 2)")
    trial.add_argument("--log-dir", default="", help="keep the logs of the trials here")
    trial.add_argument(
        "--try",
        dest="script",
        nargs=argparse.REMAINDER,
        metavar="SCRIPT ...",
        help="run SCRIPT with its arguments in each mode; must come last. Its Trainer saves and "
        "publishes nothing during trials",
    )


def _number(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number such as 2e9, got {text!r}") from None
    if not math.isfinite(found) or found < 0:
        raise argparse.ArgumentTypeError(f"expected a number >= 0, got {text!r}")
    return found


def _positive(text: str) -> float:
    found = _number(text)
    if not found:
        raise argparse.ArgumentTypeError(f"expected a number > 0, got {text!r}")
    return found


def _count(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"expected a whole number >= 1, got {text!r}")
    return int(text)


def run_plan_command(options: argparse.Namespace) -> int:
    """Run a trial, calibrate, or plan; return the exit code."""
    modes = [name.strip() for name in options.modes.split(",") if name.strip()]
    if options.script is not None:
        return _run_trial(options, modes)
    if options.rows is None and options.dim is None and options.calibrate:
        _calibrated(options.calibrate)
        return 0
    if options.rows is None or options.dim is None:
        raise ConfigError(
            "give --rows and --dim to plan a job, --try SCRIPT to try one, or --calibrate FILE to "
            "measure this machine"
        )
    return _run_plan(options, modes)


def _print_line(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _calibrated(path: str) -> str:
    from sparsefleet.planning.calibration import calibrate
    from sparsefleet.planning.costs import save_machine

    folder = Path(path).absolute().parent
    # Check this before measuring for a minute.
    if Path(path).is_dir() or not os.access(folder, os.W_OK):
        found = "a directory" if Path(path).is_dir() else f"{folder} is missing or not writable"
        raise ConfigError(f"--calibrate {path!r}: {found}; give a file in a writable directory")
    save_machine(calibrate(Path(path).name.removesuffix(".json"), say=_print_line), path)
    _print_line(f"written to {path}; use it with --machine {path}")
    return path


def _run_plan(options: argparse.Namespace, modes: Sequence[str]) -> int:
    from sparsefleet.planning.advice import PlanRequest, advise_job
    from sparsefleet.planning.costs import load_machine
    from sparsefleet.planning.data_sample import read_sample
    from sparsefleet.planning.workload import MODES

    sample: DataSample | None = None
    settings: dict[str, Any] = {}
    if options.sample is not None:
        sample = read_sample(
            options.sample,
            batch=options.batch,
            file_format=options.file_format,
            label=options.label,
        )
        settings = {
            "ids_per_example": sample.ids_per_example,
            "distinct": sample.distinct_per_batch,
            "growth": sample.growth,
        }
    for name, value in (("ids_per_example", options.ids), ("distinct", options.distinct)):
        if value is not None:
            settings[name] = value
    with naming_options("PlanRequest", **_OPTIONS):
        request = PlanRequest(
            rows=options.rows,
            dim=options.dim,
            optimizer=options.optimizer,
            row_dtype=options.row_dtype,
            batch=options.batch,
            examples_per_s=options.examples_per_second,
            dense=options.dense,
            compute_us=options.compute_us,
            cores=options.cores,
            memory_gib=options.memory,
            network_gbit=options.network,
            price_per_hour=options.price,
            headroom=options.headroom,
            modes=modes or MODES,
            **settings,
        )
    machine = load_machine(_calibrated(options.calibrate) if options.calibrate else options.machine)
    advice = advise_job(request, machine)
    if options.json:
        print(json.dumps(_as_json(advice, sample), indent=2))
    else:
        print("\n".join(_plan_lines(advice, sample)))
    return 0 if advice.recommended else 1


def _as_json(advice: Advice, sample: DataSample | None) -> dict[str, Any]:
    row = {**dataclasses.asdict(advice.row), "memory": advice.row.memory}
    return {
        "request": dataclasses.asdict(advice.request),
        "machine": {"name": advice.machine.name, "cpu": advice.machine.cpu},
        "sample": None if sample is None else dataclasses.asdict(sample),
        "step": dataclasses.asdict(advice.job),
        "row_bytes": {
            **row,
            "snapshot": advice.row.snapshot,
            "checkpoint": advice.row.checkpoint,
        },
        "table_bytes": advice.table_bytes,
        "servers_for_memory": advice.servers_for_memory,
        "disk_bytes_per_server": advice.disk_bytes_per_server,
        "log_bytes_per_s": advice.log_bytes_per_s,
        "modes": [{**dataclasses.asdict(plan), "machines": plan.machines} for plan in advice.modes],
        "recommended": advice.recommended,
        "reasons": list(advice.reasons),
    }


def _plan_lines(advice: Advice, sample: DataSample | None) -> list[str]:
    request, row, job = advice.request, advice.row, advice.job
    lines = []
    if sample is not None:
        lines += [
            f"sample      {_of(sample.examples, 'example')} of "
            f"{_of(len(sample.columns), 'column')}: {sample.ids_per_example:.1f} ids each, "
            f"{sample.distinct:,} distinct",
            f"            {sample.distinct_per_batch:.0%} of a batch's ids are distinct; the "
            f"hottest 0.1% get {sample.hot_share:.0%} of lookups, the hottest id "
            f"{sample.hottest_share:.1%}",
        ]
        if sample.examples < request.batch:
            lines.append(
                f"            fewer examples than a batch of {request.batch:,}: its share of "
                "distinct ids is overstated"
            )
    lines += [
        f"row         {row.memory:.0f} bytes: {row.values} values, {row.state} of "
        f"{request.optimizer}, {row.index:.0f} key and index",
        f"tables      {advice.table_bytes / _GIB:,.1f} GiB with {request.headroom:.0%} headroom: "
        f"at least {_of(advice.servers_for_memory, 'server')} with {request.memory_gib:g} GiB",
        f"disk        {advice.disk_bytes_per_server / _GIB:,.1f} GiB per durable server (log, two "
        f"snapshots); up to {advice.log_bytes_per_s / 1e6:,.0f} MB/s of log in all",
        f"step        {job.batch} examples, {job.ids:,.0f} ids, {job.keys:,.0f} distinct, "
        f"{1e3 * job.compute_s:.1f} ms of a core ({advice.machine.cpu})",
        "",
        *_table(_MODE_HEADS, [_mode_row(plan, advice) for plan in advice.modes]),
        "",
    ]
    if advice.recommended:
        plan = advice.plan_of(advice.recommended)
        lines.append(
            f"use {plan.mode}: {_of(plan.workers, 'worker')} on "
            f"{_of(plan.worker_machines, 'machine')}, {_of(plan.servers, 'server')} on "
            f"{plan.servers:,} more"
        )
    return [*lines, *(f"  - {reason}" for reason in advice.reasons)]


def _of(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _mode_row(plan: ModePlan, advice: Advice) -> list[str]:
    if plan.predicted is None:
        return [plan.mode, "-", "-", "-", "-", "-", "-", plan.reason]
    price = "-" if plan.price_per_hour is None else f"{plan.price_per_hour:,.2f}/h"
    return [
        f"{plan.mode}{' *' if plan.mode == advice.recommended else ''}",
        f"{plan.workers:,}",
        f"{plan.servers:,}",
        f"{plan.machines:,}",
        f"{plan.predicted.examples_per_s:,.0f}",
        f"{plan.network_gbit_per_server:.1f} Gbit/server",
        price,
        plan.reason,
    ]


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return aligned lines: the first and last columns flush left, numbers flush right."""
    widths = [max(len(row[i]) for row in (heads, *rows)) for i in range(len(heads))]
    lines = []
    for row in (heads, *rows):
        cells = [
            cell.ljust(width) if i in (0, len(row) - 1) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


# -- trials -----------------------------------------------------------------------------------


def _run_trial(options: argparse.Namespace, modes: Sequence[str]) -> int:
    from sparsefleet.planning.mode_trial import (
        TRIAL_MODES,
        TrialConfig,
        recommend,
        run_trials,
    )

    if not options.script:
        raise ConfigError("--try needs a script: sparsefleet plan --try train.py [arguments]")
    config = TrialConfig(
        script=options.script[0],
        arguments=options.script[1:],
        seconds=options.seconds,
        modes=modes or TRIAL_MODES,
        servers=options.servers,
        workers=options.workers,
        log_dir=options.log_dir,
    )
    results = run_trials(config, say=_print_line)
    chosen, reasons = recommend(results)
    if options.json:
        found = [
            {
                name: None if isinstance(value, float) and not math.isfinite(value) else value
                for name, value in dataclasses.asdict(one).items()
                if name != "points"
            }
            for one in results
        ]
        print(json.dumps({"modes": found, "recommended": chosen, "reasons": reasons}, indent=2))
        return 0
    print("\n".join(_trial_lines(results, chosen, reasons)))
    return 0


def _trial_lines(results: Sequence[ModeResult], chosen: str, reasons: Sequence[str]) -> list[str]:
    local = next((one for one in results if one.mode == "local" and not one.error), None)
    heads = ("mode", "examples/s", "examples", "AUC", "vs local", "loss", "staleness", "bytes/ex.")
    rows = [_trial_row(one, local, is_chosen=one.mode == chosen) for one in results]
    where = "on the last training batches after this time"
    if any(one.is_held_out for one in results):
        where = "on held-out data after this time"
    elif all(one.auc is None for one in results):
        where = "not measured, which needs labels of 0 and 1"
    fewest = min((one.examples for one in results if not one.error), default=0)
    return [
        *_table((*heads, "note"), rows),
        "",
        f"AUC: {where}. loss: over the second half of the first {fewest:,} examples in each mode.",
        "",
        *([f"use {chosen}"] if chosen else []),
        *(f"  - {reason}" for reason in reasons),
    ]


def _trial_row(one: ModeResult, local: ModeResult | None, *, is_chosen: bool) -> list[str]:
    if one.error:
        # The full text was shown when it failed.
        note = one.error if len(one.error) <= _NOTE_LENGTH else f"{one.error[:_NOTE_LENGTH]} ..."
        return [one.mode, *["-"] * 7, note]
    auc = gap = "-"
    if one.auc is not None:
        auc = f"{one.auc:.4f}"
        if local is not None and local.auc is not None:
            gap = f"{one.auc - local.auc:+.4f}"
    return [
        f"{one.mode}{' *' if is_chosen else ''}",
        f"{one.examples_per_s:,.0f}",
        f"{one.examples:,}",
        auc,
        gap,
        f"{one.loss:.4f}",
        f"{one.staleness:.1f}",
        f"{one.bytes_per_example:,.0f}",
        "",
    ]
