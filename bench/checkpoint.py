"""Saving and loading: speed compared with dd and fsync, memory, and the effect of a save on
training.

python bench/checkpoint.py [--quick] [--repeats 5] [--json FILE] [--directory DIR]

One server process holds one table; this process trains on it with pulls and pushes and has it
saved.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median

import numpy as np
import torch

from measure import console, machine, write_json
from sparsefleet import optim
from sparsefleet.store import Constant, RemoteStore, TableSpec
from sparsefleet.store.store_save import StoreSave

DIM = 16
BATCH = 2_600
CHUNK = 50_000
LOOK_S = 0.005
NUM_STEPS = {False: 300, True: 20}
"""Steps per measurement, by --quick."""


class Server:
    """`sparsefleet server` on a free port."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "sparsefleet", "server", "--endpoint", "127.0.0.1:0"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        found = re.search(r"listening on (\S+)", self._process.stdout.readline())
        assert found is not None, "the server did not start"
        self.endpoint = found[1]

    def resident_bytes(self) -> int:
        with open(f"/proc/{self._process.pid}/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(60)


class PeakMemory:
    """Measure how much the server's memory grows at most while the block runs."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._stop = threading.Event()
        self.grown_bytes = 0

    def __enter__(self) -> PeakMemory:
        self._before = self._server.resident_bytes()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(LOOK_S):
            grown = self._server.resident_bytes() - self._before
            self.grown_bytes = max(self.grown_bytes, grown)


def save(store: RemoteStore, path: Path) -> tuple[float, float]:
    """Return the seconds until the cuts are open, and until the checkpoint is committed."""
    begun = time.perf_counter()
    one = StoreSave(store, path)
    one.open()
    opened = time.perf_counter() - begun
    one.write()
    one.commit({}, step=0)
    return opened, time.perf_counter() - begun


def dd_mb_per_s(path: Path, num_bytes: int) -> float:
    """Write the same number of bytes with dd, synced at the end."""
    begun = time.perf_counter()
    count = max(1, num_bytes >> 20)
    command = ["dd", "if=/dev/zero", f"of={path}", "bs=1M", f"count={count}", "conv=fsync"]
    subprocess.run(command, check=True, capture_output=True)
    seconds = time.perf_counter() - begun
    path.unlink()
    return (count << 20) / 1e6 / seconds


class Steps:
    """Training steps on the table: pull, the matrix products of CTR-DNN at batch 1000, push."""

    def __init__(self, store: RemoteStore, keys: np.ndarray) -> None:
        self._store = store
        self._keys = keys
        self._rng = np.random.default_rng(1)
        self._gradients = np.full((BATCH, DIM), 1e-3, np.float32)
        self._inputs = torch.randn(1000, 400)
        self._weights = torch.randn(400, 400)

    def times_ms(self, count: int, cores: int) -> list[float]:
        """Return the milliseconds of each of `count` steps, with products on `cores` cores."""
        torch.set_num_threads(cores)
        taken = []
        for _ in range(count):
            batch = self._rng.choice(self._keys, BATCH)
            begun = time.perf_counter()
            self._store.pull("t", batch)
            for _ in range(9):  # three layers: one forward and two backward products
                self._inputs @ self._weights
            self._store.push("t", batch, self._gradients)
            taken.append(1e3 * (time.perf_counter() - begun))
        return taken


class EndlessSaves:
    """Save repeatedly in a thread while the block runs."""

    def __init__(self, store: RemoteStore, path: Path) -> None:
        self._store = store
        self._path = path
        self._stop = threading.Event()

    def __enter__(self) -> None:
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            save(self._store, self._path)


def p99(times: list) -> float:
    return float(np.percentile(times, 99))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, to check that it runs")
    parser.add_argument("--repeats", type=int, default=5, help="interleaved repeats (default 5)")
    parser.add_argument("--rows", type=int, help="rows in the table")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument(
        "--directory", help="on the disk to measure (default: a temporary directory)"
    )
    return parser.parse_args()


def fill(store: RemoteStore, num_rows: int) -> np.ndarray:
    store.define(
        TableSpec(name="t", dim=DIM, optimizer=optim.Adagrad(lr=0.1), initializer=Constant(0.1))
    )
    keys = np.random.default_rng(0).integers(0, 2**63, num_rows, dtype=np.int64)
    for begin in range(0, num_rows, CHUNK):
        store.pull("t", keys[begin : begin + CHUNK])
    return keys


def measure(
    store: RemoteStore, server: Server, keys: np.ndarray, place: Path, options: argparse.Namespace
) -> tuple[int, dict[str, list[float]]]:
    """Return the bytes of a checkpoint, and the figures of each repeat by name."""
    payload = store.stats()[0]["table.t.payload_bytes"]
    steps = Steps(store, keys)
    num_steps = NUM_STEPS[options.quick]
    save(store, place / "warm")
    num_bytes = sum(f.stat().st_size for f in (place / "warm").rglob("*") if f.is_file())
    taken: dict[str, list[float]] = {}

    def keep(name: str, value: float) -> None:
        taken.setdefault(name, []).append(value)

    for number in range(options.repeats):
        path = place / f"save-{number}"
        keep("dd with fsync, MB/s", dd_mb_per_s(place / "dd", num_bytes))
        with PeakMemory(server) as peak:
            opened, seconds = save(store, path)
        keep("save, MB/s", num_bytes / 1e6 / seconds)
        keep("cuts open after, ms", 1e3 * opened)
        keep("memory of a save, % of the table", 100 * peak.grown_bytes / payload)
        for products, cores in (("one core", 1), ("all cores", os.cpu_count() or 1)):
            without = steps.times_ms(num_steps, cores)
            with EndlessSaves(store, path):
                during = steps.times_ms(num_steps, cores)
            keep(f"products on {products}: median step without a save, ms", median(without))
            keep(f"products on {products}: median step during a save, ms", median(during))
            keep(f"products on {products}: p99 of a step without a save, ms", p99(without))
            keep(f"products on {products}: p99 of a step during a save, ms", p99(during))
            growth = 100 * (p99(during) / p99(without) - 1)
            keep(f"products on {products}: growth of p99, %", growth)
        begun = time.perf_counter()
        store.load(path)
        keep("load, MB/s", num_bytes / 1e6 / (time.perf_counter() - begun))
        shutil.rmtree(path)
    return num_bytes, taken


def main() -> None:
    options = parse_arguments()
    num_rows = options.rows or (200_000 if options.quick else 4_000_000)
    server = Server()
    try:
        with (
            tempfile.TemporaryDirectory(dir=options.directory) as directory,
            RemoteStore([server.endpoint]) as store,
        ):
            keys = fill(store, num_rows)
            num_bytes, taken = measure(store, server, keys, Path(directory), options)
    finally:
        server.close()
    console.print(machine())
    console.print(f"{num_rows:,} rows of {DIM} with Adagrad, {num_bytes / 1e6:.0f} MB of files")
    for name, values in taken.items():
        low, high = min(values), max(values)
        console.print(f"{name:60} {median(values):9.1f}   ({low:.1f} .. {high:.1f})")
    share = median(taken["save, MB/s"]) / median(taken["dd with fsync, MB/s"])
    console.print(f"a save reaches {100 * share:.0f} % of the speed of dd")
    if options.json:
        write_json(options.json, {name: median(v) for name, v in taken.items()})


if __name__ == "__main__":
    main()
