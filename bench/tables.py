"""Lookup and update cost of the native tables, 1 and 2 threads, and memory a row.

make bench            or    python bench/tables.py [--quick] [--repeats 5] [--json FILE]
"""

from __future__ import annotations

import multiprocessing
import resource

import numpy as np

from measure import console, interleave, machine, parse_arguments, report, time_threads, write_json
from sparsefleet import optim
from sparsefleet.store import Constant, LocalStore, TableSpec

DIM = 10
BATCH = 2_600
TARGET_LOOKUP_NS = 120
TARGET_MEMORY = 1.3


def resident_bytes() -> int:
    """What the kernel counts as this process's memory now."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


def random_keys(num_rows: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 2**64, num_rows, dtype=np.uint64)


def filled_store(optimizer: optim.Optimizer, keys: np.ndarray) -> LocalStore:
    """A store whose table ``t`` has a row for every key."""
    store = LocalStore()
    store.define(TableSpec(name="t", dim=DIM, optimizer=optimizer, initializer=Constant(0.1)))
    out = np.empty((50_000, DIM), np.float32)
    for start in range(0, len(keys), len(out)):
        part = keys[start : start + len(out)]
        store.pull("t", part, out=out[: len(part)])
    return store


def resident_ratio(optimizer: optim.Optimizer, num_rows: int) -> float:
    """What a process really grows by, over the payload. Run it in a process of its own."""
    keys = random_keys(num_rows)
    before = resident_bytes()
    with filled_store(optimizer, keys) as store:
        return (resident_bytes() - before) / store.stats()[0]["table.t.payload_bytes"]


class Worker:
    """One thread's batches and buffers, made before the clock starts."""

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


def main() -> None:
    arguments = parse_arguments(__doc__ or "")
    num_rows = 200_000 if arguments.quick else 5_000_000
    rounds = 40 if arguments.quick else 400
    console.print(f"[bold]Tables[/bold]: {num_rows:,} rows x {DIM}, random 64-bit keys, ", end="")
    console.print(f"batches of {BATCH:,}. {machine()}")
    keys = random_keys(num_rows)
    figures: dict[str, object] = {"rows": num_rows, "dim": DIM, "batch": BATCH}
    rows = []
    for name, optimizer in {
        "sgd": optim.SGD(lr=0.01),
        "adagrad": optim.Adagrad(lr=0.01),
        "adam": optim.Adam(lr=0.01),
    }.items():
        with multiprocessing.get_context("spawn").Pool(1) as fresh:
            resident = fresh.apply(resident_ratio, (optimizer, num_rows))
        store = filled_store(optimizer, keys)
        workers = [Worker(store, keys, seed) for seed in (1, 2)]

        def side(action: str, threads: int, workers: list[Worker] = workers) -> float:
            work = [getattr(worker, action) for worker in workers[:threads]]
            return time_threads(work, rounds) / (rounds * BATCH) * 1e9

        taken = interleave(
            {
                f"{action} {threads}": lambda a=action, t=threads: side(a, t)
                for action in ("lookup", "update", "update_merging")
                for threads in (1, 2)
            },
            arguments.repeats,
        )
        stats = store.stats()[0]
        ratio = stats["table.t.memory_bytes"] / stats["table.t.payload_bytes"]
        figures[name] = {"ns_per_row": taken, "memory_ratio": ratio, "resident_ratio": resident}
        rows.append(
            [
                name,
                *(
                    f"{taken[f'{a} {t}'][0]:.0f}"
                    for a in ("lookup", "update", "update_merging")
                    for t in (1, 2)
                ),
                f"{ratio:.3f}",
                f"{resident:.3f}",
            ]
        )
        store.close()
    report(
        "ns a row and thread (median); memory over key + values + state",
        [
            "optimizer",
            "lookup 1t",
            "2t",
            "update 1t",
            "2t",
            "merging 1t",
            "2t",
            "memory",
            "resident",
        ],
        rows,
    )
    lookup = figures["sgd"]["ns_per_row"]["lookup 1"][0]  # type: ignore[index]
    memory = figures["sgd"]["memory_ratio"]  # type: ignore[index]
    console.print(f"lookup {lookup:.0f} ns (target <= {TARGET_LOOKUP_NS}), ", end="")
    console.print(f"memory {memory:.2f}x payload (target <= {TARGET_MEMORY})")
    write_json(arguments.json, figures)


if __name__ == "__main__":
    main()
