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
BATCHES = (2_600, 100)
KEYS_IN_TURN = 104_000
"""Keys that each thread cycles through: as many for small batches, so that caches help no more."""
ACTIONS = ("lookup", "update", "update_merging")
TARGET_NS = {2_600: 120, 100: 100}
"""Targets for a lookup with one thread, ns per row, by batch."""
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

    def __init__(self, store: LocalStore, keys: np.ndarray, batch: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.store = store
        in_turn = rng.choice(keys, KEYS_IN_TURN, replace=False)
        self.batches = np.split(in_turn, KEYS_IN_TURN // batch)
        self.out = np.empty((batch, DIM), np.float32)
        self.gradients = rng.normal(size=(batch, DIM)).astype(np.float32)
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


def times_ns(
    store: LocalStore, keys: np.ndarray, batch: int, rounds: int, repeats: int
) -> dict[str, tuple[float, float, float]]:
    """Measure ns per row of each action with one and with two threads."""
    workers = [Worker(store, keys, batch, seed) for seed in (1, 2)]
    calls = rounds * BATCHES[0] // batch

    def side(action: str, threads: int) -> float:
        work = [getattr(worker, action) for worker in workers[:threads]]
        return time_threads(work, calls) / (calls * batch) * 1e9

    return interleave(
        {
            f"{action} {threads}": lambda a=action, t=threads: side(a, t)  # type: ignore[misc]
            for action in ACTIONS
            for threads in (1, 2)
        },
        repeats,
    )


def measure(
    optimizer: optim.Optimizer, keys: np.ndarray, rounds: int, repeats: int
) -> dict[str, Any]:
    """Measure ns per row of each action, and memory over payload, for one kind of table."""
    with multiprocessing.get_context("spawn").Pool(1) as fresh:
        resident = fresh.apply(resident_ratio, (optimizer, len(keys)))
    with filled_store(optimizer, keys) as store:
        taken = {batch: times_ns(store, keys, batch, rounds, repeats) for batch in BATCHES}
        stats = store.stats()[0]
    ratio = stats["table.t.memory_bytes"] / stats["table.t.payload_bytes"]
    return {"ns_per_row": taken, "memory_ratio": ratio, "resident_ratio": resident}


def show(figures: Mapping[str, Any]) -> None:
    """Print one row per optimizer, and the targets for SGD."""
    rows = [
        [
            name,
            f"{batch:,}",
            *(f"{taken[f'{a} {t}'][0]:.0f}" for a in ACTIONS for t in (1, 2)),
            f"{one['memory_ratio']:.3f}",
            f"{one['resident_ratio']:.3f}",
        ]
        for name, one in figures.items()
        for batch, taken in one["ns_per_row"].items()
    ]
    columns = ["optimizer", "batch", "lookup 1t", "2t", "update 1t", "2t", "merging 1t", "2t"]
    title = "ns per row and thread (median); memory over key + values + state"
    report(title, [*columns, "memory", "resident"], rows)
    for batch, target_ns in TARGET_NS.items():
        lookup = figures["sgd"]["ns_per_row"][batch]["lookup 1"][0]
        text = f"lookup in batches of {batch:,}: {lookup:.0f} ns (target <= {target_ns})"
        judge(text, lookup <= target_ns)
    memory = figures["sgd"]["resident_ratio"]
    text = f"resident memory {memory:.2f}x payload (target <= {TARGET_MEMORY})"
    judge(text, memory <= TARGET_MEMORY)


def main() -> None:
    arguments = parse_arguments(__doc__ or "")
    num_rows = 200_000 if arguments.quick else 5_000_000
    rounds = 40 if arguments.quick else 400
    console.print(f"[bold]Tables[/bold]: {num_rows:,} rows x {DIM}, random 64-bit keys, ", end="")
    console.print(f"batches of {' and '.join(f'{batch:,}' for batch in BATCHES)}. {machine()}")
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
    write_json(arguments.json, {"rows": num_rows, "dim": DIM, **found})


if __name__ == "__main__":
    main()
