"""The speed of a job on Ray against `sparsefleet launch` on the same machine.

    python bench/ray_job.py [--quick] [--mode async] [--json FILE]

Both run this file as 2 servers and 2 workers, and both jobs are alive all the time. They train a
small CTR-DNN in short turns, one job at a time, while the other waits; the order changes from
pair to pair. So both jobs see the same disturbances, and starting them is not timed. Pairs during
which other programs ran are left out. The rate of a job is the sum over its workers; CPU time is
that of all its processes, Ray's own included. Ray has one raylet, without dashboard.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

SERVERS, WORKERS = 2, 2
COLUMNS, DIM, BATCH = 26, 10, 500
HIDDEN = (128, 64)
KEYS = 200_000
LOOK_S = 0.01
TURN_S = 120.0
WARM_TURNS = 2
QUIET = 0.15
"""Cores that other programs may use during a turn; a noisier pair does not count."""


def train(options: argparse.Namespace) -> None:
    """Train as one process of the job; workers write the rate of each turn."""
    import torch
    from torch import nn

    from sparsefleet import Trainer, TrainerConfig, fleet, optim
    from sparsefleet.data.features import Categorical, Features
    from sparsefleet.zoo import CtrDnn

    torch.set_num_threads(1)
    torch.manual_seed(0)
    fleet.init()
    folder = Path(options.out)
    rng = np.random.default_rng(fleet.worker_index())
    batches = [
        (
            {"ads": rng.zipf(1.2, (BATCH, COLUMNS)) % KEYS},
            rng.integers(0, 2, BATCH).astype(np.float32),
        )
        for _ in range(options.batches)
    ]
    columns = tuple(f"ad{number}" for number in range(COLUMNS))
    model = CtrDnn(Features(Categorical("ads", columns=columns, dim=DIM)), hidden=HIDDEN)
    loss = nn.functional.binary_cross_entropy_with_logits
    with Trainer(
        model, loss, optim.Adagrad(lr=0.05), mode=options.mode, config=TrainerConfig(quiet=True)
    ) as trainer:
        for number in itertools.count():
            if not _wait_for_turn(folder, number):
                break
            begin = time.perf_counter()
            trainer.fit(batches, epochs=options.epochs)
            seconds = time.perf_counter() - begin
            examples = options.batches * options.epochs * BATCH
            write_whole(folder / f"rate-{number}-{fleet.worker_index()}", str(examples / seconds))


def write_whole(path: Path, text: str) -> None:
    """Write a file that others see only when it is complete."""
    draft = path.with_suffix(".draft")
    draft.write_text(text)
    draft.rename(path)


def _wait_for_turn(folder: Path, number: int) -> bool:
    """Return whether there is another turn."""
    while not (folder / f"turn-{number}").exists():
        if (folder / "end").exists():
            return False
        time.sleep(LOOK_S)
    return True


class LiveJob:
    """A job that trains when it is its turn."""

    def __init__(self, options: argparse.Namespace, *flags: str) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.path = Path(self._folder.name)
        words = [sys.executable, "-m", "sparsefleet", "launch", *flags]
        words += ["--log-dir", str(self.path / "logs"), "--servers", str(SERVERS)]
        words += ["--workers", str(WORKERS), "--quiet", __file__]
        words += ["--train", "--out", str(self.path), "--mode", options.mode]
        words += ["--batches", str(options.batches), "--epochs", str(options.epochs)]
        self.process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
        self._turn = 0

    def take_turn(self) -> float:
        """Train once and return the examples per second of all workers."""
        rates = [self.path / f"rate-{self._turn}-{rank}" for rank in range(WORKERS)]
        (self.path / f"turn-{self._turn}").touch()
        self._turn += 1
        deadline = time.monotonic() + TURN_S
        while not all(rate.exists() for rate in rates):
            if self.process.poll() is not None:
                raise RuntimeError(f"the job ended with exit code {self.process.returncode}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"turn {self._turn - 1} took more than {TURN_S:.0f} s")
            time.sleep(LOOK_S)
        return sum(float(rate.read_text()) for rate in rates)

    def close(self) -> None:
        """Let the job end."""
        (self.path / "end").touch()
        try:
            self.process.wait(TURN_S)
        finally:
            self.process.kill()
            self._folder.cleanup()


def cpu_by_root(roots: Sequence[int]) -> list[float]:
    """Return the CPU time so far of each root and its descendants, without that of this process. A
    process below two roots counts for the nearer one.
    """
    parents, used_s = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            fields = path.read_text().rpartition(")")[2].split()
            pid = int(path.parent.name)
            parents[pid] = int(fields[1])
            used_s[pid] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    found = dict.fromkeys(roots, 0.0)
    used_s.pop(os.getpid(), None)
    for pid, seconds in used_s.items():
        above = pid
        while above and above not in found:
            above = parents.get(above, 0)
        if above:
            found[above] += seconds
    return [found[root] for root in roots]


def compare(options: argparse.Namespace) -> None:
    # Ray then listens on loopback only, as it does on macOS.
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    from ray.cluster_utils import Cluster

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
        with contextlib.ExitStack() as stack:
            jobs = {
                "launch": LiveJob(options),
                "on ray": LiveJob(options, "--on", "ray", "--address", cluster.address),
            }
            for job in jobs.values():
                stack.callback(job.close)
            for _ in range(WARM_TURNS):
                for job in jobs.values():
                    job.take_turn()
            taken = take_pairs(jobs, 1 if options.quick else options.repeats, options)
    finally:
        cluster.shutdown()
    _report(taken, options)


@dataclasses.dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a job."""

    rate: float
    """Examples per second."""
    cpu_us: float
    """CPU time per example of all processes of the job."""
    idle: float
    """Cores that the other job, which waits, uses meanwhile."""
    others: float
    """Cores that other programs use meanwhile."""


def take_pairs(
    jobs: Mapping[str, LiveJob], pairs: int, options: argparse.Namespace
) -> dict[str, list[Turn]]:
    """Return the turns of each job, of which one is next to one of the other."""
    from measure import busy_s

    examples = options.batches * options.epochs * BATCH * WORKERS
    roots = [jobs["launch"].process.pid, os.getpid()]  # Ray's processes are children of this one
    places = {"launch": 0, "on ray": 1}
    taken: dict[str, list[Turn]] = {name: [] for name in jobs}
    for pair in range(pairs):
        for name in (list(jobs), list(reversed(jobs)))[pair % 2]:
            before, busy, begin = cpu_by_root(roots), busy_s(), time.monotonic()
            rate = jobs[name].take_turn()
            seconds = time.monotonic() - begin
            used = [late - early for early, late in zip(before, cpu_by_root(roots), strict=True)]
            others = max(0.0, busy_s() - busy - sum(used)) / seconds
            own = used.pop(places[name])
            taken[name].append(Turn(rate, 1e6 * own / examples, used[0] / seconds, others))
    return taken


def _report(taken: Mapping[str, Sequence[Turn]], options: argparse.Namespace) -> None:
    from measure import console, judge, machine, report, write_json

    names = list(taken)
    waiting = {  # a job waits during the turns of the other one
        name: statistics.median(turn.idle for turn in taken[other])
        for name, other in zip(names, reversed(names), strict=True)
    }
    steps_us = {
        name: [turn.cpu_us - 1e6 * waiting[name] / turn.rate for turn in taken[name]]
        for name in names
    }
    rows = []
    for name, turns in taken.items():
        low, middle, high = quartiles([turn.rate for turn in turns])
        cpu_us = statistics.median(turn.cpu_us for turn in turns)
        rows.append(
            [
                name,
                f"{middle:,.0f}",
                f"{low:,.0f} to {high:,.0f}",
                f"{cpu_us:.2f}",
                f"{waiting[name]:.3f}",
                f"{statistics.median(steps_us[name]):.2f}",
            ]
        )
    heads = ["job", "examples/s, median", "quartiles", "CPU us/example", "cores while it waits"]
    report(f"{options.mode}, {machine()}", [*heads, "CPU us/example without these"], rows)
    pairs = list(zip(taken["on ray"], taken["launch"], strict=True))
    quiet = [pair for pair in pairs if max(turn.others for turn in pair) <= QUIET]
    console.print(f"  {len(pairs) - len(quiet)} of {len(pairs)} pairs disturbed by other programs")
    pairs = quiet or pairs
    ratios = [ours.rate / base.rate for ours, base in pairs]
    low, ratio, high = quartiles(ratios)
    cpu = statistics.median(steps_us["on ray"]) / statistics.median(steps_us["launch"])
    # The standard error of a median is 1.25 times that of a mean, and quartiles are 1.35 standard
    # deviations apart.
    error = 1.25 * (high - low) / 1.35 / len(ratios) ** 0.5
    judge(
        f"on Ray: {ratio:.3f} +- {error:.3f} of the rate of launch, at least 0.98; {len(ratios)} "
        f"pairs, quartiles {low:.3f} to {high:.3f}",
        ratio >= 0.98,
    )
    judge(f"on Ray: {cpu:.3f} of the CPU time of training, at most 1.02", cpu <= 1.02)
    figures = {
        "mode": options.mode,
        "turns": {name: [dataclasses.asdict(turn) for turn in taken[name]] for name in taken},
        "ratio": ratio,
        "error": error,
        "waiting_cores": waiting,
        "cpu_ratio": cpu,
    }
    write_json(options.json, figures)


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    low, middle, high = np.percentile(values, (25, 50, 75))
    return float(low), float(middle), float(high)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, to check that it runs")
    parser.add_argument("--repeats", type=int, default=100, help="pairs of turns (default 100)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--mode", default="async", help="training mode (default async)")
    parser.add_argument("--batches", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--epochs", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.batches = options.batches or (10 if options.quick else 60)
    options.epochs = options.epochs or (1 if options.quick else 2)
    return options


if __name__ == "__main__":
    given = parse_arguments()
    if given.train:
        train(given)
    else:
        compare(given)
