"""AUC of each mode of training CTR-DNN after one epoch over the same click log.

    python bench/ctr_quality.py [--quick] [--json FILE]

The log has a planted signal (examples/click_log.py), so the best AUC that any model can reach is
known. On all sides, rows and layers start from the same distributions and are trained with plain
SGD at the same learning rate; workers share the examples. Nothing is timed: one side runs at a
time.
"""

from __future__ import annotations

import sys
import tempfile
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
BATCH = 100
LR = 0.2
MODES = ("sync", "half_async", "async", "geo")
SPECS = (
    SideSpec(engine=OURS),
    SideSpec(engine=OURS, threads=2),
    *(fleet(mode) for mode in (*MODES, "hybrid")),
    SideSpec(engine=TORCH),
    SideSpec(engine=TORCH, workers=2),
    SideSpec(engine=PADDLE),
    *(fleet(mode, PADDLE) for mode in MODES),
)
QUICK_SPECS = (fleet("async"), SideSpec(engine=TORCH), SideSpec(engine=PADDLE))


def write_arrays(path: Path, log: ClickLog) -> None:
    ids = (log.keys.view(np.uint64) % np.uint64(NUM_IDS)).astype(np.int64)
    np.savez(path, counts=log.counts, ids=ids, clicks=log.clicks.astype(np.int64))


def make_sources(folder: Path, quick: bool) -> tuple[Sources, Path, float]:
    """Return the training examples, the held-out file, and the best AUC possible there."""
    log = generate(NUM_TRAINED[quick] + NUM_HELD_OUT[quick], seed=0)
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


def measure_side(spec: SideSpec, sources: Sources, held_out: Path, examples: int) -> dict[str, Any]:
    """Return its AUC after one epoch, or why there is none."""
    try:
        one = start(spec, sources)
    except (OSError, RuntimeError) as error:
        return {"error": str(error)}
    try:
        with one.side:
            one.side.run(BATCH, examples)
            found = one.side.score(str(held_out))
    except (OSError, RuntimeError) as error:
        return {"error": str(error)}
    return {"auc": found}


def main() -> None:
    options = argument_parser(__doc__ or "").parse_args()
    console.print(f"[bold]AUC after one epoch[/bold]. {machine()}")
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        sources, held_out, best = make_sources(Path(folder), options.quick)
        for spec in QUICK_SPECS if options.quick else SPECS:
            figures[spec.name] = measure_side(spec, sources, held_out, NUM_TRAINED[options.quick])
            console.print(f"  {spec.name}: {figures[spec.name]}", highlight=False, markup=False)
    rows = [
        [name, f"{one['auc']:.4f}" if "auc" in one else one["error"].splitlines()[0][:40]]
        for name, one in figures.items()
    ]
    report(f"held out; best possible {best:.4f}", ["", "AUC"], rows)
    about = {"examples": NUM_TRAINED[options.quick], "batch": BATCH, "lr": LR, "best": best}
    write_json(options.json, {**about, "sides": figures})


if __name__ == "__main__":
    main()
