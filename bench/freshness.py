"""How soon what is trained is predicted: from a trainer's moment to a service in another process.

    python bench/freshness.py [--quick] [--rows 1000000] [--target redis://127.0.0.1:6379/0]

A trainer in this process trains a table and publishes every second; a service in a process of its
own follows a directory, or Redis. Printed: the time between the moment of an update and its being
in force, and the age that rows had at most.
"""

from __future__ import annotations

import argparse
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
from sparsefleet.export import read_manifest
from sparsefleet.nn import SparseEmbeddingBag
from sparsefleet.serve.row_stores import UpdatedRows, open_rows
from sparsefleet.train import PublishConfig, TrainerConfig

DIM = 16
SLOTS = 26
BATCH = 512


class Clicks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows = SparseEmbeddingBag("ads", DIM)
        self.net = nn.Sequential(nn.Linear(DIM, 256), nn.ReLU(), nn.Linear(256, 1), nn.Flatten(0))

    def forward(self, ids: Tensor) -> Tensor:
        return self.net(self.rows(ids))


def batches(rows: int, seconds: float) -> Iterator[tuple[Tensor, Tensor]]:
    rng = np.random.default_rng(0)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ids = torch.from_numpy(np.minimum(rng.zipf(1.1, (BATCH, SLOTS)), rows))
        yield ids, (ids.float().mean(1) < rows / 4).float()


def follow(export: str, target: str, seconds: float) -> None:
    """The service: prints, for each update in force, how old its moment was then."""
    rows = open_rows(export, read_manifest(export), updates=target)
    assert isinstance(rows, UpdatedRows)
    seen, end = rows.sequence, time.monotonic() + seconds
    print("ready", flush=True)
    while time.monotonic() < end:
        if rows.sequence != seen:
            seen, made = rows.sequence, rows.freshness()
            print(f"{time.time() - (made or 0):.4f}", flush=True)
        time.sleep(0.001)
    rows.close()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short: does it run at all")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--target", default="")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--follow", default="")
    options = parser.parse_args()
    if options.quick:
        options.rows, options.seconds = 50_000, 6.0
    return options


def export_model(model: nn.Module, folder: Path, rows: int) -> None:
    """With a row for each id."""
    quiet = TrainerConfig(quiet=True)
    with Trainer(model, nn.BCEWithLogitsLoss(), optim.Adagrad(lr=0.05), config=quiet) as trainer:
        trainer.fit(batches(rows, 2.0))
        for first in range(0, rows, 65536):
            trainer.distributed.store.pull("ads", np.arange(first, first + 65536))
        trainer.export(folder, next(batches(rows, 1.0)), onnx=False)


def measure(options: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Trains and publishes while a service follows."""
    target, model = options.target or str(folder / "updates"), Clicks()
    export_model(model, folder / "export", options.rows)
    follower = [sys.executable, __file__, "--follow", str(folder / "export"), "--target", target]
    service = subprocess.Popen(
        [*follower, "--seconds", str(options.seconds + 10)], stdout=subprocess.PIPE, text=True
    )
    assert service.stdout is not None
    assert service.stdout.readline() == "ready\n"
    with Trainer(
        model,
        nn.BCEWithLogitsLoss(),
        optim.Adagrad(lr=0.05),
        config=TrainerConfig(quiet=True),
        publish=PublishConfig(model=folder / "export", target=target, every_s=1.0),
    ) as trainer:
        history = trainer.fit(batches(options.rows, options.seconds))
    first, *others = [float(line) for line in service.communicate()[0].split()]
    return {
        "rows": options.rows,
        "examples_per_s": history.examples / options.seconds,
        "updates": 1 + len(others),
        "first_s": first,
        "median_s": statistics.median(others),
        "largest_s": max(others),
    }


def main() -> None:
    options = parse_arguments()
    if options.follow:
        follow(options.follow, options.target, options.seconds)
        return
    with tempfile.TemporaryDirectory() as folder:
        found = measure(options, Path(folder))
    print(f"{found['rows']:,} rows of {DIM}, {found['examples_per_s']:,.0f} examples/s")
    print(f"{found['updates']} updates seen; from their moment until in force, seconds:")
    print(f"  first {found['first_s']:.2f} (all rows are compared with the export), then")
    print(f"  median {found['median_s']:.2f}, largest {found['largest_s']:.2f}")
    oldest_s = 1.0 + found["largest_s"]
    print(f"oldest that a trained step was when it became visible: {oldest_s:.2f} s")
    write_json(options.json, found)


if __name__ == "__main__":
    main()
