"""How soon training shows in predictions: from the moment of an update to a service elsewhere.

    python bench/freshness.py [--quick] [--rows 1000000] [--target redis://127.0.0.1:6379/0]

A trainer in this process trains a table and publishes every second; a service in another process
follows a directory, or Redis, until its input ends. Prints the time from the moment of an update
until it is active, and the maximum age of the rows.
"""

from __future__ import annotations

import argparse
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from measure import write_json
from sparsefleet import Trainer, optim
from sparsefleet.data.features import Categorical, Features
from sparsefleet.serving.export import read_manifest
from sparsefleet.serving.row_stores import UpdatedRows, open_rows
from sparsefleet.train import PublishConfig, TrainerConfig
from sparsefleet.zoo import CtrDnn

DIM = 16
SLOTS = 26
BATCH = 512
EVERY_S = 1.0
QUICK_EVERY_S = 0.3
"""Between updates."""
LAST_S = 1.0
"""Time for the last update to become active."""
END_S = 30.0


def make_model() -> CtrDnn:
    """Return a model of SLOTS ids that share a table, with one layer."""
    columns = tuple(f"C{column}" for column in range(SLOTS))
    return CtrDnn(Features(Categorical("ads", columns=columns, dim=DIM)), hidden=(256,))


def batches(rows: int, seconds: float) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
    rng = np.random.default_rng(0)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ids = torch.from_numpy(np.minimum(rng.zipf(1.1, (BATCH, SLOTS)), rows))
        yield {"ads": ids}, (ids.float().mean(1) < rows / 4).float()


def follow(export: str, target: str) -> None:
    """Run the service: print, for each active update, how old its moment was."""
    rows = open_rows(export, read_manifest(export), updates=target)
    assert isinstance(rows, UpdatedRows)
    seen = rows.sequence
    print("ready", flush=True)
    while not select.select([sys.stdin], [], [], 0.001)[0]:
        if rows.sequence != seen:
            seen, made = rows.sequence, rows.freshness()
            print(f"{time.time() - (made or 0):.4f}", flush=True)
    rows.close()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short, to check that it runs")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--target", default="")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--follow", default="")
    options = parser.parse_args()
    if options.quick:
        options.rows, options.seconds = 50_000, 3.0
    return options


def export_model(model: nn.Module, folder: Path, rows: int, seconds: float) -> None:
    """Train this long, with one row per id."""
    quiet = TrainerConfig(quiet=True)
    with Trainer(model, nn.BCEWithLogitsLoss(), optim.Adagrad(lr=0.05), config=quiet) as trainer:
        trainer.fit(batches(rows, seconds))
        for first in range(0, rows, 65536):
            trainer.distributed.store.pull("ads", np.arange(first, first + 65536))
        trainer.export(folder, next(batches(rows, 1.0)), onnx=False)


def measure(options: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Train and publish while a service follows."""
    target, model = options.target or str(folder / "updates"), make_model()
    export_model(model, folder / "export", options.rows, options.seconds / 5)
    follower = [sys.executable, __file__, "--follow", str(folder / "export"), "--target", target]
    every_s = QUICK_EVERY_S if options.quick else EVERY_S
    with subprocess.Popen(
        follower, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as service:
        assert service.stdout is not None
        assert service.stdout.readline() == "ready\n", "the service ended before it was ready"
        with Trainer(
            model,
            nn.BCEWithLogitsLoss(),
            optim.Adagrad(lr=0.05),
            config=TrainerConfig(quiet=True),
            publish=PublishConfig(model=folder / "export", target=target, every_s=every_s),
        ) as trainer:
            history = trainer.fit(batches(options.rows, options.seconds))
        time.sleep(LAST_S)
        ages_s = [float(line) for line in service.communicate(timeout=END_S)[0].split()]
    if len(ages_s) < 2:
        raise RuntimeError(
            f"the service saw {len(ages_s)} updates in {options.seconds:g} s, but needs two: "
            "give it more --seconds"
        )
    first_s, *others_s = ages_s
    return {
        "rows": options.rows,
        "examples_per_s": history.examples / options.seconds,
        "updates": len(ages_s),
        "first_s": first_s,
        "median_s": statistics.median(others_s),
        "largest_s": max(others_s),
        "every_s": every_s,
    }


def main() -> None:
    options = parse_arguments()
    if options.follow:
        follow(options.follow, options.target)
        return
    with tempfile.TemporaryDirectory() as folder:
        found = measure(options, Path(folder))
    print(f"{found['rows']:,} rows of {DIM}, {found['examples_per_s']:,.0f} examples/s")
    print(f"{found['updates']} updates seen; seconds from their moment until active:")
    print(f"  first {found['first_s']:.2f} (all rows are compared with the export), then")
    print(f"  median {found['median_s']:.2f}, largest {found['largest_s']:.2f}")
    oldest_s = found["every_s"] + found["largest_s"]
    print(f"maximum age of a training step when it became visible: {oldest_s:.2f} s")
    write_json(options.json, found)


if __name__ == "__main__":
    main()
