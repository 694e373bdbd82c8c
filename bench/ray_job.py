"""The speed of a job on Ray against `sparsefleet launch` on the same machine.

    python bench/ray_job.py [--quick] [--mode async] [--json FILE]

Both run this file as 2 servers and 2 workers, in turn. Each worker trains a small CTR model once to
warm up, then measures its examples per second; the rate of a job is the sum over its workers. Ray
has one raylet, without dashboard.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

SERVERS, WORKERS = 2, 2
COLUMNS, DIM, BATCH = 26, 10, 500
KEYS = 200_000


def train(options: argparse.Namespace) -> None:
    """Train as one process of the job; workers write their rate."""
    import torch
    from torch import nn

    from sparsefleet import Trainer, TrainerConfig, fleet, optim
    from sparsefleet.nn import SparseEmbedding

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows = SparseEmbedding("ads", DIM)
            sizes = (COLUMNS * DIM, 128, 64)
            layers = [
                nn.Sequential(nn.Linear(*pair), nn.ReLU()) for pair in itertools.pairwise(sizes)
            ]
            self.top = nn.Sequential(*layers, nn.Linear(64, 1))

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.top(self.rows(ids).flatten(1)).squeeze(1)

    torch.set_num_threads(1)
    torch.manual_seed(0)
    fleet.init()
    rng = np.random.default_rng(fleet.worker_index())
    batches = [
        (rng.zipf(1.2, (BATCH, COLUMNS)) % KEYS, rng.integers(0, 2, BATCH).astype(np.float32))
        for _ in range(options.batches)
    ]
    loss = nn.functional.binary_cross_entropy_with_logits
    with Trainer(
        Network(), loss, optim.Adagrad(lr=0.05), mode=options.mode, config=TrainerConfig(quiet=True)
    ) as trainer:
        trainer.fit(batches)
        begin = time.perf_counter()
        trainer.fit(batches, epochs=options.epochs)
        seconds = time.perf_counter() - begin
    rate = options.batches * options.epochs * BATCH / seconds
    Path(options.out, f"rate-{fleet.worker_index()}").write_text(str(rate))


def job_rate(options: argparse.Namespace, *flags: str) -> float:
    """Run one job; return its examples per second."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "sparsefleet", "launch", *flags, "--log-dir", folder]
        words += ["--servers", str(SERVERS), "--workers", str(WORKERS), "--quiet", __file__]
        words += ["--train", "--out", folder, "--mode", options.mode]
        words += ["--batches", str(options.batches), "--epochs", str(options.epochs)]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        return sum(float(Path(folder, f"rate-{k}").read_text()) for k in range(WORKERS))


def compare(options: argparse.Namespace) -> None:
    # Ray then listens on loopback only, as it does on macOS.
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    from ray.cluster_utils import Cluster

    from measure import judge, machine, report, take_turns, write_json

    cluster = Cluster()
    cluster.add_node(
        num_cpus=SERVERS + WORKERS,
        object_store_memory=80 << 20,
        include_dashboard=False,
        _system_config={
            "enable_worker_prestart": False,
            "prestart_worker_first_driver": False,
            "worker_niceness": 0,  # as the processes of `sparsefleet launch`; Ray's default is 15
        },
    )
    try:
        sides = {
            "launch": functools.partial(job_rate, options),
            "on ray": functools.partial(
                job_rate, options, "--on", "ray", "--address", cluster.address
            ),
        }
        taken = take_turns(sides, 1 if options.quick else options.repeats)
    finally:
        cluster.shutdown()
    rates = {name: statistics.median(found) for name, found in taken.items()}
    ratios = [ours / base for ours, base in zip(taken["on ray"], taken["launch"], strict=True)]
    ratio = statistics.median(ratios)
    rows = [
        [name, f"{rates[name]:,.0f}", f"{min(found):,.0f} to {max(found):,.0f}"]
        for name, found in taken.items()
    ]
    report(f"examples/s, {options.mode}, {machine()}", ["job", "median", "range"], rows)
    judge(f"on Ray: {ratio:.3f} of launch, at least 0.98", ratio >= 0.98)
    figures = {"mode": options.mode, "rates": taken, "ratios": ratios, "ratio": ratio}
    write_json(options.json, figures)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, to check that it runs")
    parser.add_argument("--repeats", type=int, default=3, help="interleaved repeats (default 3)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--mode", default="async", help="training mode (default async)")
    parser.add_argument("--batches", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--epochs", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.batches = options.batches or (10 if options.quick else 60)
    options.epochs = options.epochs or (1 if options.quick else 5)
    return options


if __name__ == "__main__":
    given = parse_arguments()
    if given.train:
        train(given)
    else:
        compare(given)
