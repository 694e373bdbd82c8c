"""How a fleet scales: costs of operations here, a model built on them, and what it predicts.

    python bench/scale.py [--parts costs,crowds,fleets,predict] [--tasks CTR-DNN,word2vec] [--quick]

costs    measures every operation and writes the reference machine of `sparsefleet plan`.
crowds   measures how much slower jobs become that share this machine but nothing else.
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
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from measure import ROOT, console, judge, machine, note, report
from scale_fleet import QUIET, TASKS, Measured, Shape, Task, measure, medians
from scale_report import CLOSE, draw_predictions, summarize, write_document
from sparsefleet.planning import (
    MODES,
    Crowding,
    FleetShape,
    JobShape,
    MachineCosts,
    Prediction,
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
LEFT_OUT = ((1, 1), (2, 2), (1, 4))
FEWEST_STEPS = 4
"""Steps of each worker; with fewer, a measurement says nothing."""
FITS = 4
CORES_HERE = os.cpu_count() or 1
CROWDS = {"on all cores": CORES_HERE, "in turns": 4 * CORES_HERE}
"""Jobs side by side that have nothing to do with each other, next to which a step takes longer."""
CROWD_MODE = "half_async"
"""The mode of these jobs, each with 1 worker and 1 server. In half_async, a job keeps one core
busy: either its worker computes, or its server works for it.
"""
STEPS = 200
"""Simulated steps of each worker that are compared with a fleet here."""
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
    parser.add_argument("--parts", default="costs,crowds,fleets,predict", help="comma-separated")
    parser.add_argument("--shapes", default="", help="fleets as 2x1,4x2: workers x servers")
    parser.add_argument("--tasks", default=",".join(task.name for task in TASKS))
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each fleet")
    parser.add_argument("--tries", type=int, default=3, help="of a measurement, if others disturb")
    parser.add_argument(
        "--again", action="store_true", help="measure only fleets that others have disturbed"
    )
    parser.add_argument("--quick", action="store_true", help="few fleets, to check that it runs")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    tasks = [task for task in TASKS if task.name in options.tasks.split(",")]
    parts = options.parts = options.parts.split(",")
    if unknown := set(parts) - {"costs", "crowds", "fleets", "predict", "report"}:
        parser.error(f"unknown parts: {', '.join(sorted(unknown))}")
    console.print(f"[bold]Scale[/bold]. {machine()}")
    if "costs" in parts:
        save_machine(calibrate(NAME, say=note), MACHINES / f"{NAME}.json")
    found = _load(options.results)
    found["machine"] = machine()
    if {"crowds", "fleets"} & set(parts):
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
    """Measure fleets in rounds, each next to one with a single worker and server, which the model
    is fitted to; the medians count.
    """
    of_task = found["tasks"].setdefault(task.name, {"fleets": {}})
    if "crowds" in options.parts:
        of_task["local"] = dataclasses.asdict(measure(task, Shape(mode="local", servers=0))[0])
    for mode in modes:
        if task.dense == 0 and mode == "hybrid":
            continue  # without dense parameters it is async
        shapes = _shapes(mode, of_task, options)
        taken: dict[str, list[tuple[Measured, Measured]]] = {name: [] for name in shapes}
        for number in range(options.rounds if shapes else 0):
            for name, shape in shapes.items():
                alone, one = _quietest(task, Shape(mode=mode), shape, options.tries)
                taken[name].append((alone, one))
                note(
                    f"{task.name} {name}, round {number + 1}: {one.examples_per_s:,.0f} "
                    f"examples/s, {1e3 * (one.worker_cpu_s + one.server_cpu_s):.2f} ms per step; "
                    f"1x1 {alone.examples_per_s:,.0f}; others {one.others:.2f} cores"
                )
        for name, pairs in taken.items():
            both = [dataclasses.asdict(medians(each)) for each in zip(*pairs, strict=True)]
            rates = [[each.examples_per_s for each in pair] for pair in pairs]
            where = of_task["fleets"] if shapes[name].fleets == 1 else of_task
            where[name] = {**both[1], "reference": both[0], "rates": rates}
        _save(options.results, found)


def _shapes(mode: str, of_task: dict[str, Any], options: argparse.Namespace) -> dict[str, Shape]:
    """Return what is measured in a mode, by name."""
    found = {}
    if "crowds" in options.parts and mode == CROWD_MODE:
        found = {f"{mode} {name}": Shape(mode=mode, fleets=jobs) for name, jobs in CROWDS.items()}
    sizes = [(w, s) for s in SERVERS for w in WORKERS if (w, s) not in LEFT_OUT]
    if options.quick:
        sizes = [(2, 2)]
    if options.shapes:
        sizes = [tuple(map(int, text.split("x"))) for text in options.shapes.split(",")]
    for workers, servers in sizes if "fleets" in options.parts else ():
        name = f"{mode} {workers}x{servers}"
        before = of_task["fleets"].get(name)
        if not options.again or before is None or _disturbed(before) > QUIET:
            found[name] = Shape(mode=mode, workers=workers, servers=servers)
    return found


def _quietest(task: Task, reference: Shape, shape: Shape, tries: int) -> tuple[Measured, Measured]:
    """Return what was measured of the reference and of a fleet, while others used least."""
    taken = []
    for _ in range(tries):
        alone, one = measure(task, reference, shape)
        taken.append((alone, one))
        if max(alone.others, one.others) <= QUIET:
            break
    return min(taken, key=lambda both: max(each.others for each in both))


def _disturbed(one: Mapping[str, Any]) -> float:
    """Return the cores that others used while a fleet or its reference was measured."""
    return float(max(one["others"], one["reference"]["others"]))


def _cpu_s(one: Mapping[str, Any]) -> float:
    return float(one["worker_cpu_s"] + one["server_cpu_s"])


# -- comparing --------------------------------------------------------------------------------


def _job(task: Task, found: dict[str, Any], costs: MachineCosts) -> JobShape:
    """Return the step of a task: as measured in local training or, before that, as `sparsefleet
    plan` estimates it.
    """
    of_task = found["tasks"].get(task.name, {})
    if "local" in of_task:
        job = task.job(_cpu_s(of_task["local"]), VARIATION)
        return dataclasses.replace(job, crowding=_crowding(of_task))
    looked_up = task.ids(task.batches(0)[0])
    ids = len(looked_up)
    floats = ids * task.floats(looked_up)
    shape = {"batch": task.batch, "ids": ids, "floats": floats, "dense": task.dense}
    return task.job(costs.worker.compute_s(**shape), VARIATION)


def _crowding(of_task: dict[str, Any]) -> Crowding:
    """Return what jobs that have nothing to do with each other cost each other."""
    jobs = [of_task.get(f"{CROWD_MODE} {name}") for name in CROWDS]
    alone = _reference(CROWD_MODE, of_task)
    if alone is None or None in jobs:
        return Crowding()
    full, in_turns = (_cpu_s(one) / _cpu_s(alone) - 1 for one in jobs)
    displaced = (in_turns - full) / (1 - CORES_HERE / CROWDS["in turns"])
    return Crowding(neighbours=max(0.0, full), displaced=max(0.0, displaced))


def _reference(mode: str, of_task: dict[str, Any]) -> dict[str, float] | None:
    """Return what 1 worker and 1 server did: medians over all that they ran next to."""
    near = [one for one in of_task["fleets"].values() if one["mode"] == mode]
    near += [one for name in CROWDS if (one := of_task.get(f"{mode} {name}"))]
    if not near:
        return None
    return {
        name: statistics.median(one["reference"][name] for one in near)
        for name in ("examples_per_s", "worker_cpu_s", "server_cpu_s")
    }


def _here(workers: int, servers: int, cores: int, others: float = 0.0) -> FleetShape:
    """Return a fleet on this machine, of which others use some cores."""
    return FleetShape(
        workers=workers,
        servers=servers,
        worker_cores=cores,
        server_cores=cores,
        busy_cores=min(others, cores - 0.5),
    )


def _modelled_s(said: Prediction, costs: MachineCosts) -> float:
    """Return the CPU time of all processes per example, on a shared machine."""
    return said.worker_busy * costs.cores / said.examples_per_s


def fit_modes(task: Task, found: dict[str, Any], costs: MachineCosts) -> MachineCosts:
    """Return the costs with what each mode adds for this task: the CPU time of a step in the worker
    and a factor for keys and bytes in servers, so that the model uses as much of both with 1 worker
    and 1 server as was measured. Modes that were not measured add nothing.
    """
    of_task = found["tasks"].get(task.name, {"fleets": {}})
    job = _job(task, found, costs)
    for mode in MODES:
        if mode == "hybrid" and not task.dense:
            continue
        step_s, served = 0.0, 1.0
        one = _reference(mode, of_task)
        for _ in range(FITS):  # what a mode adds also changes how crowded its processes are
            costs = dataclasses.replace(
                costs,
                mode_step_s={**costs.mode_step_s, mode: step_s},
                mode_server={**costs.mode_server, mode: served},
            )
            if one is None:
                break
            said = predict(mode, job, _here(1, 1, costs.cores), costs, steps=STEPS)
            used_s = job.batch * _modelled_s(said, costs)
            step_s += one["worker_cpu_s"] - used_s * (1 - said.server_share)
            served *= one["server_cpu_s"] / (used_s * said.server_share)
    return costs


def _validate(task: Task, found: dict[str, Any], costs: MachineCosts) -> None:
    """Compare the model with all fleets."""
    fitted = fit_modes(task, found, costs)
    job = _job(task, found, costs)
    rows, errors, cpu_errors, compared = [], [], [], {}
    for name, one in found["tasks"][task.name]["fleets"].items():
        mode, workers, servers = one["mode"], one["workers"], one["servers"]
        if mode not in fitted.mode_step_s or one["steps"] < workers * FEWEST_STEPS:
            continue
        here = _here(workers, servers, costs.cores, one["others"])
        said = predict(mode, job, here, fitted, steps=STEPS)
        rate = said.examples_per_s
        error = rate / one["examples_per_s"] - 1
        used_us, said_us = 1e6 * _cpu_s(one) / task.batch, 1e6 * _modelled_s(said, costs)
        compared[name] = {
            "measured": one["examples_per_s"],
            "predicted": rate,
            "error": error,
            "cpu_us": used_us,
            "predicted_cpu_us": said_us,
            "cpu_error": said_us / used_us - 1,
            "others": _disturbed(one),
        }
        errors.append(error)
        cpu_errors.append(said_us / used_us - 1)
        rows.append(
            [
                name,
                f"{one['examples_per_s']:,.0f}",
                f"{rate:,.0f}",
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
    found["tasks"][task.name]["mode_step_s"] = fitted.mode_step_s
    found["tasks"][task.name]["mode_server"] = fitted.mode_server
    for what, found_errors in (("rate", errors), ("processor time", cpu_errors)):
        if found_errors:
            summary = summarize(found_errors)
            judge(f"{task.name}, {what}: {summary}", all(abs(e) <= CLOSE for e in found_errors))


def _report_costs(costs: MachineCosts) -> None:
    rows = [
        [
            f"{which}, {transport} {name}",
            *(
                f"{value:,.2f}"
                for side in (cost.client, cost.server)
                for value in (
                    1e6 * side.request_s,
                    1e9 * side.key_s,
                    1e9 * side.byte_s,
                    1e9 * side.far_byte_s,
                )
            ),
        ]
        for which, transports in (("1 server", costs.single), ("more", costs.operations))
        for transport, operations in transports.items()
        for name, cost in operations.items()
    ]
    per = ["ns/key", "ns/byte", "ns/far byte"]
    heads = ["operation", "client us/request", *per, "server us/request", *per]
    report(f"Costs, {costs.cpu}", heads, rows)


# -- predicting -------------------------------------------------------------------------------


def _predict(task: Task, found: dict[str, Any], costs: MachineCosts) -> dict[str, Any]:
    fitted = fit_modes(task, found, costs)
    job = dataclasses.replace(_job(task, found, costs), exchange_steps=None)  # the default
    series: dict[str, Any] = {}
    for mode in fitted.mode_step_s:
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
    nodes = _nodes(task, job, fitted)
    return {"series": series, "nodes": nodes}


def _cluster(workers: int, servers: int, network: float) -> FleetShape:
    return FleetShape(
        workers=workers,
        servers=servers,
        network_bytes_per_s=gbit(network),
        worker_cores=CORES,
        server_cores=CORES,
    )


def _nodes(task: Task, job: JobShape, costs: MachineCosts) -> dict[str, dict[str, float]]:
    """Return the share of the rate per node that is kept from 4 to 32 nodes of 8 workers."""
    kept: dict[str, dict[str, float]] = {}
    rows = []
    for mode in costs.mode_step_s:
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
