"""AUC of each mode of training CTR-DNN on the same examples, over several seeds.

    python bench/ctr_quality.py [--quick] [--seeds 5] [--only NAMES] [--data NAMES] [--json FILE]

Two kinds of data (bench/quality_data.py): generated logs with a planted signal, of which the best
AUC that any model can reach is known, and the ratings of Book-Crossing if ../shared/data is
present. A seed generates another log, or splits and orders the ratings in another way. On all
sides, rows and layers start from the same distributions and are trained by plain SGD with the same
two rates, in one pass over the examples; workers share the examples. Where a mode averages its
workers, each takes half a batch, so that all sides make the same number of updates from the same
number of examples. Modes are compared with our own training in one thread, seed by seed: the
difference of two sides varies less than their AUC. Nothing is timed: sides with a single thread run
two at a time, and the others alone.
"""

from __future__ import annotations

import math
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from ctr_files import write_slot_files
from ctr_names import OURS, PADDLE, TORCH
from ctr_start import SideSpec, Sources, fleet, start
from measure import argument_parser, console, machine, report, write_json
from paddle_environment import find_paddle
from quality_data import TASKS, Examples, Split, Task
from sparsefleet.errors import InputMissingError

SEEDS = {False: 5, True: 1}
REFERENCE = SideSpec(engine=OURS)
MODES = ("sync", "half_async", "async", "geo")
AVERAGING = ("sync", "hybrid")
SPECS = (
    REFERENCE,
    SideSpec(engine=OURS, threads=2),
    *(fleet(mode) for mode in (*MODES, "hybrid")),
    SideSpec(engine=TORCH),
    SideSpec(engine=TORCH, workers=2),
    SideSpec(engine=PADDLE),
    *(fleet(mode, PADDLE) for mode in MODES),
)
NETWORK_SPECS = tuple(
    fleet(mode, transport="tls", wire_dtype=dtype)
    for mode in ("sync", "async")
    for dtype in (None, "bf16")
)
"""Run only when named with --only."""
AT_ONCE = 2
QUICK_SPECS = (REFERENCE, fleet("async"), SideSpec(engine=TORCH), SideSpec(engine=PADDLE))


def batch_of(spec: SideSpec, batch: int) -> int:
    """Return the batch of a worker: workers that are averaged share the batch of an update."""
    averages = spec.mode in AVERAGING or spec.engine == TORCH
    return batch // spec.workers if averages else batch


def make_sources(folder: Path, task: Task, examples: Examples, *, may_install: bool) -> Sources:
    """Write the training examples for all sides."""
    trained = folder / "trained.npz"
    examples.save(trained)
    columns = [torch.from_numpy(one) for one in (examples.counts, examples.ids, examples.clicks)]
    counts, ids, clicks = columns
    halves = [(counts[half::2], ids[half::2], clicks[half::2]) for half in (0, 1)]
    paddle, missing = find_paddle(may_install=may_install)
    return Sources(
        folder=folder,
        data=trained,
        paddle_files=write_slot_files(folder, "part", halves),
        lr=task.lr,
        row_lr=task.row_lr,
        inputs=(counts.shape[1], ids.shape[1]),
        paddle=paddle,
        paddle_missing=missing,
    )


def groups_of(specs: Sequence[SideSpec]) -> list[Sequence[SideSpec]]:
    """Return the sides in groups that run at the same time."""
    single = [one for one in specs if not one.servers and one.workers * one.threads == 1]
    pairs = [single[at : at + AT_ONCE] for at in range(0, len(single), AT_ONCE)]
    return [*pairs, *([one] for one in specs if one not in single)]


def measure_side(
    spec: SideSpec, sources: Sources, held_out: Path, *, batch: int, examples: int
) -> float:
    """Return its AUC after one pass."""
    one = start(spec, sources)
    with one.side:
        one.side.run(batch_of(spec, batch), examples)
        return one.side.score(str(held_out))


def measure_sides(
    specs: Sequence[SideSpec], sources: Sources, held_out: Path, *, batch: int, examples: int
) -> Iterator[tuple[str, float | str]]:
    """Yield the name of each side and its AUC, or its error."""

    def measured(spec: SideSpec) -> float | str:
        try:
            return measure_side(spec, sources, held_out, batch=batch, examples=examples)
        except (OSError, RuntimeError) as error:
            return str(error)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for group in groups_of(specs):
            yield from zip((spec.name for spec in group), pool.map(measured, group), strict=True)


def measure(task: Task, specs: Sequence[SideSpec], seeds: int, *, quick: bool) -> dict[str, Any]:
    """Return the figures of all sides, or what data is missing."""
    found: dict[str, list[float]] = {spec.name: [] for spec in specs}
    errors: dict[str, str] = {}
    bests = []
    for seed in range(seeds):
        try:
            split: Split = task.split(seed, quick)
        except InputMissingError as error:
            return {"missing": str(error)}
        examples = len(split.trained.clicks)
        if split.best is not None:
            bests.append(split.best)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            sources = make_sources(folder, task, split.trained, may_install=not quick)
            held_out = folder / "held_out.npz"
            split.held_out.save(held_out)
            size = {"batch": task.batch, "examples": examples}
            working = [spec for spec in specs if spec.name not in errors]
            for side, auc in measure_sides(working, sources, held_out, **size):
                if isinstance(auc, str):
                    errors[side] = auc
                    continue
                found[side].append(auc)
                text = f"  seed {seed}, {side}: {auc:.4f}"
                console.print(text, highlight=False, markup=False)
    reference = [] if REFERENCE.name in errors else found[REFERENCE.name]
    sides = {
        name: {"error": errors[name]} if name in errors else summarize(aucs, reference)
        for name, aucs in found.items()
    }
    best = {"best": statistics.mean(bests)} if bests else {}
    about = {
        "seeds": seeds,
        "examples": examples,
        "batch": task.batch,
        "lr": task.lr,
        "row_lr": task.row_lr,
    }
    return {**about, **best, "sides": sides}


def summarize(aucs: Sequence[float], reference: Sequence[float]) -> dict[str, Any]:
    """Return mean and spread of a side's AUC, and of its difference from the reference.

    >>> found = summarize([0.71, 0.72, 0.73], [0.70, 0.71, 0.73])
    >>> round(found["auc"], 4), round(found["difference"], 4), round(found["standard_error"], 4)
    (0.72, 0.0067, 0.0033)
    """
    differences = [one - other for one, other in zip(aucs, reference, strict=False)]
    is_spread = len(aucs) > 1
    return {
        "auc": statistics.mean(aucs),
        "deviation": statistics.stdev(aucs) if is_spread else 0.0,
        "aucs": list(aucs),
        "difference": statistics.mean(differences) if differences else math.nan,
        "standard_error": (
            statistics.stdev(differences) / math.sqrt(len(differences))
            if len(differences) > 1
            else math.nan
        ),
    }


def line(one: Mapping[str, Any]) -> list[str]:
    """Return mean, spread and difference as text, or the error."""
    if "auc" not in one:
        return [one["error"].splitlines()[0][:40], "", ""]
    return [
        f"{one['auc']:.4f}",
        f"{one['deviation']:.4f}",
        f"{one['difference']:+.4f} ± {one['standard_error']:.4f}",
    ]


def show(name: str, figures: Mapping[str, Any]) -> None:
    if "missing" in figures:
        console.print(f"{name}: {figures['missing']}", highlight=False, markup=False)
        return
    best = f"; best possible {figures['best']:.4f}" if "best" in figures else ""
    rows = [[side, *line(one)] for side, one in figures["sides"].items()]
    columns = ["", "AUC", "deviation", f"difference from {REFERENCE.name}"]
    report(f"{name}: held out, {figures['seeds']} seeds{best}", columns, rows)


def chosen_specs(only: str, *, quick: bool) -> list[SideSpec]:
    """Return the sides with these names, separated by semicolons, and the reference."""
    names = [name.strip() for name in only.split(";") if name.strip()]
    if not names:
        return list(QUICK_SPECS if quick else SPECS)
    known = {one.name: one for one in (*SPECS, *NETWORK_SPECS)}
    if unknown := [name for name in names if name not in known]:
        sys.exit(f"--only: unknown side {unknown[0]!r}; choose from: {'; '.join(known)}")
    return [one for one in known.values() if one.name in names or one == REFERENCE]


def main() -> None:
    parser = argument_parser(__doc__ or "")
    parser.add_argument("--seeds", type=int, help="number of seeds (default 5)")
    parser.add_argument("--only", default="", help="names of sides, separated by semicolons")
    parser.add_argument("--data", default=",".join(TASKS), help="kinds, separated by commas")
    options = parser.parse_args()
    quick = options.quick
    seeds = options.seeds or SEEDS[quick]
    console.print(f"[bold]AUC over {seeds} seeds[/bold]. {machine()}")
    specs = chosen_specs(options.only, quick=quick)
    kinds = options.data.split(",")
    if unknown := [name for name in kinds if name not in TASKS]:
        sys.exit(f"--data: unknown data {unknown[0]!r}; choose from: {', '.join(TASKS)}")
    found = {}
    for name in kinds:
        found[name] = measure(TASKS[name], specs, seeds, quick=quick)
        show(name, found[name])
    write_json(options.json, found)


if __name__ == "__main__":
    main()
