"""Lookup and update cost of the native tables, with 1 and 2 threads, and memory per row.

make bench            or    python bench/tables.py [--quick] [--repeats 5] [--json FILE]
"""

from __future__ import annotations

import multiprocessing
import resource
from collections.abc import Mapping
from typing import Any

import numpy as np

from measure import (
    console,
    interleave,
    judge,
    machine,
    parse_arguments,
    report,
    time_threads,
    write_json,
)
from sparsefleet import optim
from sparsefleet.store import Constant, LocalStore, TableSpec

DIM = 10
BATCH = 2_600
ACTIONS = ("lookup", "update", "update_merging")
TARGET_LOOKUP_NS = 120
TARGET_MEMORY = 1.3


def resident_bytes() -> int:
    """Return the current resident memory of this process."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


def random_keys(num_rows: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 2**64, num_rows, dtype=np.uint64)


def filled_store(optimizer: optim.Optimizer, keys: np.ndarray) -> LocalStore:
    """Return a store whose table ``t`` has a row for every key."""
    store = LocalStore()
    store.define(TableSpec(name="t", dim=DIM, optimizer=optimizer, initializer=Constant(0.1)))
    out = np.empty((50_000, DIM), np.float32)
    for start in range(0, len(keys), len(out)):
        part = keys[start : start + len(out)]
        store.pull("t", part, out=out[: len(part)])
    return store


def resident_ratio(optimizer: optim.Optimizer, num_rows: int) -> float:
    """Return the growth of a process relative to the payload. Run it in a separate process."""
    keys = random_keys(num_rows)
    before = resident_bytes()
    with filled_store(optimizer, keys) as store:
        return (resident_bytes() - before) / store.stats()[0]["table.t.payload_bytes"]


class Worker:
    """One thread's batches and buffers, created before the clock starts."""

    def __init__(self, store: LocalStore, keys: np.ndarray, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.store = store
        self.batches = [
            np.unique(rng.choice(keys, BATCH + 200, replace=False))[:BATCH] for _ in range(40)
        ]
        for batch in self.batches:
            rng.shuffle(batch)
        self.out = np.empty((BATCH, DIM), np.float32)
        self.gradients = rng.normal(size=(BATCH, DIM)).astype(np.float32)
        self.next = 0

    def batch(self) -> np.ndarray:
        self.next = (self.next + 1) % len(self.batches)
        return self.batches[self.next]

    def lookup(self) -> None:
        self.store.pull("t", self.batch(), out=self.out)

    def update(self) -> None:
        self.store.push("t", self.batch(), self.gradients, unique=True)

    def update_merging(self) -> None:
        self.store.push("t", self.batch(), self.gradients)


def measure(
    optimizer: optim.Optimizer, keys: np.ndarray, rounds: int, repeats: int
) -> dict[str, Any]:
    """Measure ns per row of each action, and memory over payload, for one kind of table."""
    with multiprocessing.get_context("spawn").Pool(1) as fresh:
        resident = fresh.apply(resident_ratio, (optimizer, len(keys)))
    with filled_store(optimizer, keys) as store:
        workers = [Worker(store, keys, seed) for seed in (1, 2)]

        def side(action: str, threads: int) -> float:
            work = [getattr(worker, action) for worker in workers[:threads]]
            return time_threads(work, rounds) / (rounds * BATCH) * 1e9

        taken = interleave(
            {
                f"{action} {threads}": lambda a=action, t=threads: side(a, t)  # type: ignore[misc]
                for action in ACTIONS
                for threads in (1, 2)
            },
            repeats,
        )
        stats = store.stats()[0]
    ratio = stats["table.t.memory_bytes"] / stats["table.t.payload_bytes"]
    return {"ns_per_row": taken, "memory_ratio": ratio, "resident_ratio": resident}


def show(figures: Mapping[str, Any]) -> None:
    """Print one row per optimizer, and the targets for SGD."""
    rows = [
        [
            name,
            *(f"{one['ns_per_row'][f'{a} {t}'][0]:.0f}" for a in ACTIONS for t in (1, 2)),
            f"{one['memory_ratio']:.3f}",
            f"{one['resident_ratio']:.3f}",
        ]
        for name, one in figures.items()
    ]
    columns = ["optimizer", "lookup 1t", "2t", "update 1t", "2t", "merging 1t", "2t"]
    title = "ns per row and thread (median); memory over key + values + state"
    report(title, [*columns, "memory", "resident"], rows)
    lookup = figures["sgd"]["ns_per_row"]["lookup 1"][0]
    memory = figures["sgd"]["resident_ratio"]
    judge(f"lookup {lookup:.0f} ns (target <= {TARGET_LOOKUP_NS})", lookup <= TARGET_LOOKUP_NS)
    text = f"resident memory {memory:.2f}x payload (target <= {TARGET_MEMORY})"
    judge(text, memory <= TARGET_MEMORY)


def main() -> None:
    arguments = parse_arguments(__doc__ or "")
    num_rows = 200_000 if arguments.quick else 5_000_000
    rounds = 40 if arguments.quick else 400
    console.print(f"[bold]Tables[/bold]: {num_rows:,} rows x {DIM}, random 64-bit keys, ", end="")
    console.print(f"batches of {BATCH:,}. {machine()}")
    keys = random_keys(num_rows)
    optimizers = {
        "sgd": optim.SGD(lr=0.01),
        "adagrad": optim.Adagrad(lr=0.01),
        "adam": optim.Adam(lr=0.01),
    }
    found = {
        name: measure(optimizer, keys, rounds, arguments.repeats)
        for name, optimizer in optimizers.items()
    }
    show(found)
    write_json(arguments.json, {"rows": num_rows, "dim": DIM, "batch": BATCH, **found})


if __name__ == "__main__":
    main()
