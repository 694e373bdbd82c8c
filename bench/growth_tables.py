"""How the cost of a row grows with the number of rows in a table and with their width."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from growth_figure import Figure
from measure import console, take_turns, time_call
from side_processes import start_servers
from sparsefleet import optim
from sparsefleet.store import LocalStore, RemoteStore, Store, TableSpec

NUM_SERVERS = 2
BATCH = 26_000
DIM = 10
FILLED_AT_ONCE = 200_000
NUM_BATCHES = 8
ROUNDS = 10
"""A measurement is the median of this many calls."""
COPIED_BYTES = 1 << 26
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


@contextlib.contextmanager
def both_stores() -> Iterator[dict[str, Store]]:
    """Tables in this process, and on servers on this machine."""
    key = os.urandom(32).hex()
    servers, endpoints = start_servers(NUM_SERVERS, None, key)
    try:
        with LocalStore() as local:
            remote = RemoteStore(endpoints, job_key=key.encode())
            with remote:
                yield {"in process": local, f"{NUM_SERVERS} servers": remote}
    finally:
        for server in servers:
            server.close(terminate=True)


def keys_of(ids: np.ndarray) -> np.ndarray:
    """Return keys spread over all 64 bits."""
    return ids.astype(np.uint64) * MULTIPLIER


def define(store: Store, table: str, dim: int) -> None:
    store.define(TableSpec(name=table, dim=dim, optimizer=optim.SGD(lr=0.01)))


def fill(store: Store, table: str, begin: int, end: int) -> None:
    for first in range(begin, end, FILLED_AT_ONCE):
        store.pull(table, keys_of(np.arange(first, min(first + FILLED_AT_ONCE, end))))


def row_sides(
    stores: dict[str, Store], table: str, dim: int, num_rows: int
) -> dict[str, Callable[[], float]]:
    """Return nanoseconds per row of a call with `BATCH` distinct rows, drawn uniformly."""
    rng = np.random.default_rng(num_rows)
    count = min(BATCH, num_rows // 2)
    batches = [keys_of(rng.choice(num_rows, count, replace=False)) for _ in range(NUM_BATCHES)]
    gradients = rng.normal(size=(count, dim)).astype(np.float32)
    out = np.empty((count, dim), np.float32)
    turn = iter(range(10**12))

    def next_batch() -> np.ndarray:
        return batches[next(turn) % NUM_BATCHES]

    def pull(store: Store) -> float:
        taken = time_call(lambda: store.pull(table, next_batch(), out=out), ROUNDS)
        return 1e9 * taken / count

    def push(store: Store) -> float:
        taken = time_call(lambda: store.push(table, next_batch(), gradients, unique=True), ROUNDS)
        return 1e9 * taken / count

    sides: dict[str, Callable[[], float]] = {}
    for name, store in stores.items():
        sides[f"pull, {name}"] = lambda store=store: pull(store)  # type: ignore[misc]
        sides[f"push, {name}"] = lambda store=store: push(store)  # type: ignore[misc]
    return sides


def measure_rows(quick: bool, repeats: int) -> list[dict[str, Any]]:
    """Nanoseconds and bytes per row, by rows in the table."""
    sizes = (10_000, 100_000) if quick else (100_000, 1_000_000, 5_000_000, 20_000_000)
    cost = Figure("rows", "Cost of a row", "rows of the table", "ns a row", is_x_log=True)
    memory = Figure("memory", "Memory of a row", "rows of the table", "bytes a row", is_x_log=True)
    cost.about = f"{DIM} floats wide, SGD, calls of {BATCH:,} rows; servers on this machine"
    memory.about = f"{4 * DIM} bytes of values and 8 of key, as the table counts what it holds"
    with both_stores() as stores:
        for store in stores.values():
            define(store, "t", DIM)
        filled = 0
        for num_rows in sizes:
            begun = time.monotonic()
            for store in stores.values():
                fill(store, "t", filled, num_rows)
            filled = num_rows
            for name, taken in take_turns(row_sides(stores, "t", DIM, num_rows), repeats).items():
                cost.add(name, num_rows, taken)
            for name, store in stores.items():
                held = sum(part["table.t.memory_bytes"] for part in store.stats())
                memory.add(name, num_rows, [held / num_rows])
            console.print(f"  {num_rows:,} rows: {time.monotonic() - begun:.0f} s", highlight=False)
    return [cost.as_json(), memory.as_json()]


def measure_width(quick: bool, repeats: int) -> list[dict[str, Any]]:
    """Nanoseconds per row by its width, compared with copying the same number of bytes."""
    dims = (8, 64) if quick else (8, 16, 32, 64, 128, 256)
    num_rows = 10_000 if quick else 200_000
    cost = Figure(
        "width", "Cost of a wide row", "floats of a row", "ns a row", is_x_log=True, is_y_log=True
    )
    cost.about = f"{num_rows:,} rows, SGD, calls of {BATCH:,} rows; servers on this machine"
    with both_stores() as stores:
        for dim in dims:
            for store in stores.values():
                define(store, f"t{dim}", dim)
                fill(store, f"t{dim}", 0, num_rows)
            sides = row_sides(stores, f"t{dim}", dim, num_rows)
            sides["copied by memcpy"] = lambda dim=dim: 4 * dim * copy_ns_per_byte()  # type: ignore[misc]
            for name, taken in take_turns(sides, repeats).items():
                cost.add(name, dim, taken)
    return [cost.as_json()]


def copy_ns_per_byte() -> float:
    """Copy speed of one thread, from memory to memory."""
    source, sink = np.ones(COPIED_BYTES, np.uint8), np.zeros(COPIED_BYTES, np.uint8)
    return 1e9 * time_call(lambda: np.copyto(sink, source), 3) / COPIED_BYTES
