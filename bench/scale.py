"""How a fleet scales: costs of operations here, a model built on them, and what it predicts.

    python bench/scale.py [--parts costs,fleets,predict] [--tasks CTR-DNN,word2vec] [--quick]

costs    measures every operation and writes the reference machine of `sparsefleet plan`.
fleets   measures 1 to 8 workers with 1 to 4 servers on this machine and compares the model with it.
predict  draws what the model says for up to 1,000 workers and 100 servers on 10, 25, 100 Gbit/s.

Each part keeps its figures in bench/results/scale.json, so that they can be run one by one. Needs
Linux. docs/scaling.md describes the model.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from measure import ROOT, console, judge, machine, note, report
from scale_fleet import TASKS, Measured, Task, measure
from scale_report import CLOSE, draw_predictions, summarize, write_document
from sparsefleet.planning import (
    MODES,
    Crowding,
    FleetShape,
    JobShape,
    MachineCosts,
    gbit,
    load_machine,
    predict,
    save_machine,
)
from sparsefleet.planning.calibration import calibrate, cpu_name

RESULTS = ROOT / "bench" / "results" / "scale.json"
MACHINES = ROOT / "src" / "sparsefleet" / "planning" / "machines"
NAME = re.sub("[^a-z0-9]+", "-", cpu_name().lower()).strip("-")
"""The reference machine: this processor."""
WORKERS = (1, 2, 4, 8)
SERVERS = (1, 2, 4)
LEFT_OUT = ((2, 2), (1, 4))
QUIET = 0.15
"""Cores that others may use during a measurement; a noisier one is repeated, by `--tries`."""
FEWEST_STEPS = 4
"""Steps of each worker; with fewer, a measurement says nothing."""
FITS = 4
CORES_HERE = os.cpu_count() or 1
CROWDS = {"local on all cores": CORES_HERE, "local in turns": 4 * CORES_HERE}
"""Processes that train by themselves, next to which a step takes longer than alone."""
NETWORKS = (10, 25, 100)
FLEETS = ((1, 1), (4, 1), (10, 1), (32, 4), (100, 10), (320, 32), (1000, 100))
"""Workers and servers of the predictions: one server for ten workers."""
CORES = 8
"""Workers per machine, and cores of a server's machine."""
NODES = (4, 32)
"""Nodes of the published figure: Paddle kept 84 % of its rate per node."""
STEPS_OF_NODES = 60
"""Steps per worker at both numbers of nodes; a shorter time favours the fewer queued pushes."""
VARIATION = 0.05
"""How much steps of dedicated machines differ; here it cannot be told from what others run."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", default="costs,fleets,predict", help="comma-separated")
    parser.add_argument("--shapes", default="", help="fleets as 2x1,4x2: workers x servers")
    parser.add_argument("--tasks", default=",".join(task.name for task in TASKS))
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--tries", type=int, default=3, help="of a measurement, if others disturb")
    parser.add_argument("--quick", action="store_true", help="few fleets, to check that it runs")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    tasks = [task for task in TASKS if task.name in options.tasks.split(",")]
    parts = options.parts.split(",")
    if unknown := set(parts) - {"costs", "fleets", "predict", "report"}:
        parser.error(f"unknown parts: {', '.join(sorted(unknown))}")
    console.print(f"[bold]Scale[/bold]. {machine()}")
    if "costs" in parts:
        save_machine(calibrate(NAME, say=note), MACHINES / f"{NAME}.json")
    found = _load(options.results)
    found["machine"] = machine()
    if "fleets" in parts:
        for task in tasks:
            _measure_fleets(task, options.modes.split(","), found, options)
    costs = load_machine(NAME)
    _report_costs(costs)
    for task in tasks:
        if task.name in found["tasks"]:
            _validate(task, found, costs)
    if "predict" in parts:
        for task in tasks:
            found.setdefault("predicted", {})[task.name] = _predict(task, found, costs)
            _save(options.results, found)
    _save(options.results, found)
    if "predict" in parts:
        draw_predictions(found["predicted"], NETWORKS)
        write_document(found)


def _load(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {"tasks": {}}


def _save(path: Path, found: dict[str, Any]) -> None:
    path.write_text(json.dumps(found, indent=1) + "\n")


# -- measuring --------------------------------------------------------------------------------


def _measure_fleets(
    task: Task, modes: Sequence[str], found: dict[str, Any], options: argparse.Namespace
) -> None:
    of_task = found["tasks"].setdefault(task.name, {"fleets": {}})
    for name, processes in {"local": 1, **CROWDS}.items():
        one = _quietest(task, "local", processes, 0, options.tries)
        of_task[name] = dataclasses.asdict(one)
        note(f"{task.name} {processes} local processes: {1e3 * one.worker_cpu_s:.2f} ms per step")
    shapes = [(w, s) for s in SERVERS for w in WORKERS if (w, s) not in LEFT_OUT]
    if options.quick:
        shapes = [(1, 1), (2, 2)]
    if options.shapes:
        shapes = [tuple(map(int, text.split("x"))) for text in options.shapes.split(",")]
    for mode in modes:
        if task.dense == 0 and mode == "hybrid":
            continue  # without dense parameters it is async
        for workers, servers in shapes:
            one = _quietest(task, mode, workers, servers, options.tries)
            of_task["fleets"][f"{mode} {workers}x{servers}"] = dataclasses.asdict(one)
            note(
                f"{task.name} {mode} {workers}x{servers}: {one.examples_per_s:,.0f} examples/s, "
                f"others {one.others:.2f} cores"
            )
            _save(options.results, found)


def _quietest(task: Task, mode: str, workers: int, servers: int, tries: int) -> Measured:
    taken = []
    for _ in range(tries):
        taken.append(measure(task, mode, workers, servers))
        if taken[-1].others <= QUIET:
            break
    return min(taken, key=lambda one: one.others)


# -- comparing --------------------------------------------------------------------------------


def _job(task: Task, found: dict[str, Any], costs: MachineCosts) -> JobShape:
    """Return the step of a task: as measured in local training or, before that, as `sparsefleet
    plan` estimates it.
    """
    local = found["tasks"].get(task.name, {}).get("local")
    if local is not None:
        job = task.job(local["worker_cpu_s"], VARIATION)
        return dataclasses.replace(job, crowding=_crowding(found["tasks"][task.name]))
    looked_up = task.ids(task.batches(0)[0])
    ids = len(looked_up)
    floats = ids * task.floats(looked_up)
    shape = {"batch": task.batch, "ids": ids, "floats": floats, "dense": task.dense}
    return task.job(costs.worker.compute_s(**shape), VARIATION)


def _crowding(of_task: dict[str, Any]) -> Crowding:
    """Return what processes that train by themselves cost each other, without any server."""
    if not CROWDS.keys() <= of_task.keys():
        return Crowding()
    alone_s = of_task["local"]["worker_cpu_s"]
    full, in_turns = (of_task[name]["worker_cpu_s"] / alone_s - 1 for name in CROWDS)
    displaced = (in_turns - full) / (1 - CORES_HERE / CROWDS["local in turns"])
    return Crowding(neighbours=max(0.0, full), displaced=max(0.0, displaced))


def _here(workers: int, servers: int, cores: int, others: float = 0.0) -> FleetShape:
    """Return a fleet on this machine, of which others use some cores."""
    return FleetShape(
        workers=workers,
        servers=servers,
        worker_cores=cores,
        server_cores=cores,
        busy_cores=min(others, cores - 0.5),
    )


def mode_overheads(task: Task, found: dict[str, Any], costs: MachineCosts) -> dict[str, float]:
    """Return the processor time per step that a mode adds in the engine: what 1 worker and 1 server
    used, less what the model has for it. 0 for modes that were not measured.
    """
    job = _job(task, found, costs)
    overheads: dict[str, float] = {}
    for mode in MODES:
        if mode == "hybrid" and not task.dense:
            continue
        one = found["tasks"].get(task.name, {"fleets": {}})["fleets"].get(f"{mode} 1x1")
        if one is None:
            overheads[mode] = 0.0
            continue
        overheads[mode] = 0.0
        for _ in range(FITS):  # what a mode adds also changes how crowded its processes are
            fitted = dataclasses.replace(costs, mode_step_s=overheads)
            modelled = predict(mode, job, _here(1, 1, costs.cores), fitted, steps=60)
            used_s = modelled.worker_busy * costs.cores * job.batch / modelled.examples_per_s
            overheads[mode] += one["worker_cpu_s"] + one["server_cpu_s"] - used_s
    return overheads


def _validate(task: Task, found: dict[str, Any], costs: MachineCosts) -> None:
    """Compare the model with all fleets but the one that it is fitted to."""
    overheads = mode_overheads(task, found, costs)
    fitted = dataclasses.replace(costs, mode_step_s=overheads)
    job = _job(task, found, costs)
    rows, errors, cpu_errors, compared = [], [], [], {}
    for name, one in found["tasks"][task.name]["fleets"].items():
        mode, workers, servers = one["mode"], one["workers"], one["servers"]
        if mode not in overheads or one["steps"] < workers * FEWEST_STEPS:
            continue
        here = _here(workers, servers, costs.cores, one["others"])
        said = predict(mode, job, here, fitted, steps=60)
        error = said.examples_per_s / one["examples_per_s"] - 1
        used_us = 1e6 * (one["worker_cpu_s"] + one["server_cpu_s"]) / task.batch
        said_us = 1e6 * said.worker_busy * costs.cores / said.examples_per_s
        compared[name] = {
            "measured": one["examples_per_s"],
            "predicted": said.examples_per_s,
            "error": error,
            "cpu_us": used_us,
            "predicted_cpu_us": said_us,
            "cpu_error": said_us / used_us - 1,
            "others": one["others"],
        }
        if (workers, servers) != (1, 1):
            errors.append(error)
            cpu_errors.append(said_us / used_us - 1)
        rows.append(
            [
                name,
                f"{one['examples_per_s']:,.0f}",
                f"{said.examples_per_s:,.0f}",
                f"{error:+.0%}",
                f"{used_us:.1f}",
                f"{said_us:.1f}",
                f"{said_us / used_us - 1:+.0%}",
                f"{one['bytes_per_example']:,.0f}",
                f"{said.bytes_per_example:,.0f}",
                f"{one['others']:.2f}",
            ]
        )
    heads = ["fleet", "examples/s", "model", "error", "CPU us/ex.", "model", "error"]
    report(task.name, [*heads, "bytes/ex.", "model", "others"], rows)
    found["tasks"][task.name]["compared"] = compared
    found["tasks"][task.name]["overheads_s"] = overheads
    for what, found_errors in (("rate", errors), ("processor time", cpu_errors)):
        if found_errors:
            summary = summarize(found_errors)
            judge(f"{task.name}, {what}: {summary}", all(abs(e) <= CLOSE for e in found_errors))


def _report_costs(costs: MachineCosts) -> None:
    rows = [
        [
            f"{transport} {name}",
            *(
                f"{value:,.2f}"
                for side in (cost.client, cost.server)
                for value in (1e6 * side.request_s, 1e9 * side.key_s, 1e9 * side.byte_s)
            ),
        ]
        for transport, operations in costs.operations.items()
        for name, cost in operations.items()
    ]
    heads = ["operation", "client us/request", "ns/key", "ns/byte"]
    report(f"Costs, {costs.cpu}", [*heads, "server us/request", "ns/key", "ns/byte"], rows)


# -- predicting -------------------------------------------------------------------------------


def _predict(task: Task, found: dict[str, Any], costs: MachineCosts) -> dict[str, Any]:
    overheads = mode_overheads(task, found, costs)
    fitted = dataclasses.replace(costs, mode_step_s=overheads)
    job = dataclasses.replace(_job(task, found, costs), exchange_steps=None)  # the default
    series: dict[str, Any] = {}
    for mode in overheads:
        for network in NETWORKS:
            points = []
            for workers, servers in FLEETS:
                one = predict(mode, job, _cluster(workers, servers, network), fitted)
                points.append([workers, servers, one.examples_per_s])
            series[f"{mode} {network}"] = points
    rows = [
        [name, *(f"{point[2] / point[0]:,.0f}" for point in points)]
        for name, points in series.items()
    ]
    heads = ["mode, Gbit/s", *(f"{workers}x{servers}" for workers, servers in FLEETS)]
    report(f"{task.name}: predicted examples/s per worker", heads, rows)
    nodes = _nodes(task, job, fitted, list(overheads))
    return {"series": series, "nodes": nodes}


def _cluster(workers: int, servers: int, network: float) -> FleetShape:
    return FleetShape(
        workers=workers,
        servers=servers,
        network_bytes_per_s=gbit(network),
        worker_cores=CORES,
        server_cores=CORES,
    )


def _nodes(
    task: Task, job: JobShape, costs: MachineCosts, modes: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Return the share of the rate per node that is kept from 4 to 32 nodes of 8 workers."""
    kept: dict[str, dict[str, float]] = {}
    rows = []
    for mode in modes:
        kept[mode] = {}
        for network in NETWORKS:
            each = [
                predict(
                    mode, job, _cluster(CORES * count, count, network), costs, steps=STEPS_OF_NODES
                ).examples_per_s
                / count
                for count in NODES
            ]
            kept[mode][str(network)] = each[1] / each[0]
        rows.append([mode, *(f"{value:.0%}" for value in kept[mode].values())])
    title = f"{task.name}: rate per node kept from {NODES[0]} to {NODES[1]} nodes"
    report(title, ["mode", *(f"{network} Gbit/s" for network in NETWORKS)], rows)
    return kept


if __name__ == "__main__":
    main()
