"""Every mode learns as well as one process does: held-out AUC, 2 servers x 2 workers.

Every mode makes the same number of dense updates as local training, each from the same number of
examples: where workers are averaged (sync, hybrid), each takes half a batch. Modes use their
default settings except for GEO's interval, which is 5 steps instead of 100. GEO needs plain SGD and
is compared with local training by plain SGD, which needs two passes. The median of three seeds
counts; a seed selects another log (where it is generated) and other initial values of the layers.

The limits hold for this setup: the more steps there are, the less a delay of a few steps costs.
With batches of 500, thus 400 updates, async was 0.002 to 0.004 below local training: half of it due
to rows fetched ahead, half to dense values fetched after every second push. GEO loses up to 0.005
with intervals of 20, and where plain SGD stops far from its optimum. Its rates were chosen on seeds
0 to 2; the seeds here are others.
"""

from __future__ import annotations

import gzip
import os
import statistics
import subprocess
import sys
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from tests.support.servers import JOB_KEY, NativeServers

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

from click_log import generate

ROOT = Path(__file__).parents[2]
BOOK_CROSSING = ROOT.parent / "shared/data/local_only/book_crossing/interactions.tsv.gz"
WORKER = Path(__file__).parent / "auc_worker.py"
NUM_WORKERS = 2
SEEDS = (3, 4, 5)
TOLERANCE = 0.002
BATCH = 100
HALF_BATCH_MODES = ("sync", "hybrid")
MODES = ("sync", "half_async", "async", "hybrid", "geo")
SGD = ("--sgd", "100", "0.2", "--epochs", "2")
SGD_BATCH = 250
DEADLINE_S = 900.0


def click_log_file(directory: Path, num_examples: int, seed: int) -> Path:
    path = directory / f"clicks-{num_examples}-{seed}.npz"
    if not path.exists():
        log = generate(num_examples, seed)
        np.savez(path, keys=log.keys, values=log.counts, clicks=log.clicks)
    return path


def book_crossing_file(directory: Path) -> Path:
    """Return who looked at which book, and whether the reader rated it."""
    path = directory / "book_crossing.npz"
    if not path.exists():
        clicks, keys = [], []
        with gzip.open(BOOK_CROSSING, "rt", encoding="utf-8") as file:
            next(file)
            for line in file:
                rating, *fields = line.rstrip("\n").split("\t")
                clicks.append(float(rating != "0"))
                keys.append([i << 40 | zlib.crc32(text.encode()) for i, text in enumerate(fields)])
        no_values = np.zeros((len(keys), 0), np.float32)
        labels = np.array(clicks, np.float32)
        np.savez(path, keys=np.array(keys, np.int64), values=no_values, clicks=labels)
    return path


def train(data: Path, mode: str, seed: int, *, sgd: bool = False) -> float:
    """Return the held-out AUC after one pass; every worker must have found the same."""
    halved = mode in HALF_BATCH_MODES
    batch = (SGD_BATCH if sgd else BATCH) // (2 if halved else 1)
    flags = ["--mode", mode, "--batch", str(batch), "--seed", str(seed), *(SGD if sgd else ())]
    command = [sys.executable, str(WORKER), str(data), *flags]
    if mode == "local":
        return _auc_of([command], [{}])
    with NativeServers(2) as servers:
        environs = [
            {
                "SPARSEFLEET_ROLE": "worker",
                "SPARSEFLEET_INDEX": str(index),
                "SPARSEFLEET_SERVERS": ",".join(servers.endpoints),
                "SPARSEFLEET_WORKERS": str(NUM_WORKERS),
                "SPARSEFLEET_JOB_KEY": JOB_KEY.decode(),
            }
            for index in range(NUM_WORKERS)
        ]
        return _auc_of([command] * NUM_WORKERS, environs)


def _auc_of(commands: Sequence[list[str]], environs: Sequence[dict[str, str]]) -> float:
    workers = [
        subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for command, environ in zip(commands, environs, strict=True)
    ]
    found = set()
    try:
        for worker in workers:
            printed, complaints = worker.communicate(timeout=DEADLINE_S)
            assert worker.returncode == 0, complaints
            found.add(float(printed.split()[-1]))
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    assert len(found) == 1, found
    return found.pop()


def compare(files: Sequence[Path], title: str) -> None:
    """Print a table of all runs; fail if a mode's median is too far from local training's."""
    runs: dict[str, list[float]] = {}
    for seed, data in zip(SEEDS, files, strict=True):
        for name, auc in one_seed(data, seed):
            runs.setdefault(name, []).append(auc)
            print(f"seed {seed} {name}: {auc:.4f}", flush=True)
    print(f"\n{title}: held-out AUC, {NUM_WORKERS} workers")
    far = {}
    for name, aucs in runs.items():
        shown = f"{name:>12} {' '.join(f'{auc:.4f}' for auc in aucs)}"
        if name.startswith("local"):
            print(shown)
            continue
        twin = "local sgd" if name == "geo" else "local"
        difference = statistics.median(a - b for a, b in zip(aucs, runs[twin], strict=True))
        print(f"{shown}  against {twin} {difference:+.4f}")
        if abs(difference) > TOLERANCE:
            far[name] = difference
    assert not far


def one_seed(data: Path, seed: int) -> Iterator[tuple[str, float]]:
    yield "local", train(data, "local", seed)
    yield "local sgd", train(data, "local", seed, sgd=True)
    for mode in MODES:
        yield mode, train(data, mode, seed, sgd=mode == "geo")


@pytest.mark.slow
def test_every_mode_learns_a_generated_click_log_as_well_as_local(tmp_path: Path) -> None:
    files = [click_log_file(tmp_path, 240_000, seed) for seed in SEEDS]
    compare(files, "generated click log, 200,000 examples")


@pytest.mark.slow
@pytest.mark.skipif(not BOOK_CROSSING.exists(), reason="Book-Crossing is not at ../shared/data")
def test_every_mode_learns_book_crossing_as_well_as_local(tmp_path: Path) -> None:
    compare([book_crossing_file(tmp_path)] * len(SEEDS), "Book-Crossing, rating > 0")
