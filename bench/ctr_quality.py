"""AUC of each mode of training CTR-DNN on the same click logs, over several seeds.

    python bench/ctr_quality.py [--quick] [--seeds 5] [--epochs 2] [--only NAMES] [--json FILE]

A seed generates a log with a planted signal (examples/click_log.py), so the best AUC that any model
can reach is known. On all sides, rows and layers start from the same distributions and are trained
with plain SGD at the same learning rate for the same number of epochs; workers share the examples.
Modes are compared with our own training in one thread, log by log: the difference of two sides
varies less than their AUC. Nothing is timed: one side runs at a time.
"""

from __future__ import annotations

import math
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ctr_batches import NUM_IDS
from ctr_files import write_slot_files
from ctr_names import OURS, PADDLE, TORCH
from ctr_start import SideSpec, Sources, fleet, start
from measure import ROOT, argument_parser, console, machine, report, write_json
from paddle_environment import find_paddle
from sparsefleet.metrics import AUC

sys.path.insert(0, str(ROOT / "examples"))

from click_log import ClickLog, generate

NUM_TRAINED = {False: 80_000, True: 8_000}
NUM_HELD_OUT = {False: 40_000, True: 4_000}
EPOCHS = {False: 2, True: 1}
SEEDS = {False: 5, True: 1}
BATCH = 100
LR = 0.2
REFERENCE = SideSpec(engine=OURS)
MODES = ("sync", "half_async", "async", "geo")
SPECS = (
    REFERENCE,
    SideSpec(engine=OURS, threads=2),
    *(fleet(mode) for mode in (*MODES, "hybrid")),
    SideSpec(engine=TORCH),
    SideSpec(engine=TORCH, workers=2),
    SideSpec(engine=PADDLE),
    *(fleet(mode, PADDLE) for mode in MODES),
)
QUICK_SPECS = (REFERENCE, fleet("async"), SideSpec(engine=TORCH), SideSpec(engine=PADDLE))


def write_arrays(path: Path, log: ClickLog) -> None:
    ids = (log.keys.view(np.uint64) % np.uint64(NUM_IDS)).astype(np.int64)
    np.savez(path, counts=log.counts, ids=ids, clicks=log.clicks.astype(np.int64))


def make_sources(folder: Path, seed: int, quick: bool) -> tuple[Sources, Path, float]:
    """Return the training examples, the held-out file, and the best AUC possible there."""
    log = generate(NUM_TRAINED[quick] + NUM_HELD_OUT[quick], seed=seed)
    trained, held_out = folder / "trained.npz", folder / "held_out.npz"
    write_arrays(trained, log.part(0, NUM_TRAINED[quick]))
    test = log.part(NUM_TRAINED[quick], len(log))
    write_arrays(held_out, test)
    best = AUC()
    best.update(test.chances, test.clicks)
    with np.load(trained) as arrays:
        whole = [torch.from_numpy(arrays[name]) for name in ("counts", "ids", "clicks")]
    halves = [tuple(part[half::2] for part in whole) for half in (0, 1)]
    paddle, missing = find_paddle(may_install=not quick)
    sources = Sources(
        folder=folder,
        data=trained,
        paddle_files=write_slot_files(folder, "part", halves),  # type: ignore[arg-type]
        lr=LR,
        paddle=paddle,
        paddle_missing=missing,
    )
    return sources, held_out, best.compute()


def measure_side(
    spec: SideSpec, sources: Sources, held_out: Path, *, epochs: int, examples: int
) -> float:
    """Return its AUC after the last epoch."""
    one = start(spec, sources)
    with one.side:
        for _ in range(epochs):
            one.side.run(BATCH, examples)
        return one.side.score(str(held_out))


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


def line(one: dict[str, Any]) -> list[str]:
    """Return mean, spread and difference as text, or the error."""
    if "auc" not in one:
        return [one["error"].splitlines()[0][:40], "", ""]
    return [
        f"{one['auc']:.4f}",
        f"{one['deviation']:.4f}",
        f"{one['difference']:+.4f} ± {one['standard_error']:.4f}",
    ]


def main() -> None:
    parser = argument_parser(__doc__ or "")
    parser.add_argument("--seeds", type=int, help="number of logs (default 5)")
    parser.add_argument("--epochs", type=int, help="passes over a log (default 2)")
    parser.add_argument("--only", default="", help="names of sides, separated by commas")
    options = parser.parse_args()
    quick = options.quick
    num_seeds = options.seeds or SEEDS[quick]
    length = {"epochs": options.epochs or EPOCHS[quick], "examples": NUM_TRAINED[quick]}
    console.print(f"[bold]AUC over {num_seeds} logs[/bold]. {machine()}")
    chosen = [name.strip() for name in options.only.split(",") if name.strip()]
    specs = [
        spec
        for spec in (QUICK_SPECS if quick else SPECS)
        if not chosen or spec.name in chosen or spec == REFERENCE
    ]
    found: dict[str, list[float]] = {spec.name: [] for spec in specs}
    errors: dict[str, str] = {}
    bests = []
    for seed in range(num_seeds):
        with tempfile.TemporaryDirectory() as folder:
            sources, held_out, best = make_sources(Path(folder), seed, quick)
            bests.append(best)
            for spec in specs:
                if spec.name in errors:
                    continue
                try:
                    found[spec.name].append(measure_side(spec, sources, held_out, **length))
                except (OSError, RuntimeError) as error:
                    errors[spec.name] = str(error)
                    continue
                text = f"  log {seed}, {spec.name}: {found[spec.name][-1]:.4f}"
                console.print(text, highlight=False, markup=False)
    reference = found[REFERENCE.name]
    figures = {
        name: {"error": errors[name]} if name in errors else summarize(aucs, reference)
        for name, aucs in found.items()
    }
    best = statistics.mean(bests)
    rows = [[name, *line(one)] for name, one in figures.items()]
    columns = ["", "AUC", "deviation", f"difference from {REFERENCE.name}"]
    report(f"held out, {num_seeds} logs; best possible {best:.4f}", columns, rows)
    about = {**length, "seeds": num_seeds, "batch": BATCH, "lr": LR, "best": best}
    write_json(options.json, {**about, "sides": figures})


if __name__ == "__main__":
    main()
