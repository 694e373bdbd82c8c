"""Checkpoints with synthetic rows for tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsefleet.checkpoint import Checkpoint, Manifest, RowChunk
from sparsefleet.checkpoint.manifest import StateColumn, TableEntry
from sparsefleet.checkpoint.pending_checkpoint import PendingCheckpoint
from sparsefleet.checkpoint.row_chunk import RowLayout, shard_of
from sparsefleet.checkpoint.row_file_writer import write_removed_keys

ADS = TableEntry(
    name="ads",
    dim=4,
    optimizer={"kind": "adagrad", "lr": 0.1},
    state=(StateColumn("sum", 4),),
    counters=("count", "step"),
    settings={"seed": 3},
)
WORDS = TableEntry(name="words/de", dim=3, optimizer={"kind": "sgd", "lr": 0.01})

Table = dict[int, tuple[bytes, bytes, bytes]]
"""Key -> bits of values, state and counters."""


def synthetic_rows(table: TableEntry, keys: Iterable[int], seed: int = 0) -> RowChunk:
    """Return a row for each key, from a seed."""
    array = np.array(list(keys), np.uint64)
    layout = RowLayout.of(table)
    draw = np.random.default_rng(seed)
    return RowChunk(
        array,
        draw.standard_normal((len(array), layout.dim), np.float32),
        draw.standard_normal((len(array), layout.state), np.float32),
        draw.integers(0, 2**32, (len(array), layout.counters), np.uint32),
    )


def as_table(chunks: Iterable[RowChunk]) -> Table:
    """Return rows by key, for bitwise comparison; a duplicate key is an error."""
    table: Table = {}
    for chunk in chunks:
        for place, key in enumerate(chunk.keys.tolist()):
            assert key not in table, f"key {key} twice"
            table[key] = (
                chunk.values[place].tobytes(),
                chunk.state[place].tobytes(),
                chunk.counters[place].tobytes(),
            )
    return table


def save(
    path: str,
    rows: Mapping[TableEntry, RowChunk] | Sequence[tuple[TableEntry, RowChunk]],
    *,
    num_shards: int = 1,
    step: int = 0,
    removed: Mapping[str, Iterable[int]] | None = None,
    base: str | None = None,
    dense: Mapping[str, NDArray[Any]] | None = None,
    workers: Sequence[Mapping[str, Any]] = ({"rank": 0, "position": 5},),
    storage_options: Mapping[str, Any] | None = None,
) -> Manifest:
    """Save tables split into shards, dense tensors and positions, as a fleet would."""
    items = rows.items() if isinstance(rows, Mapping) else rows
    with PendingCheckpoint.begin(path, storage_options) as pending:
        tables = []
        for table, chunk in items:
            files, gone = [], []
            owners = shard_of(chunk.keys, num_shards)
            keys = np.array(list((removed or {}).get(table.name, ())), np.uint64)
            for shard in range(num_shards):
                part = chunk.only(owners == shard)
                files += pending.write_rows(table, shard, num_shards, [part])
                mine = keys[shard_of(keys, num_shards) == shard]
                place = (shard, num_shards)
                gone += write_removed_keys(pending.folder, pending.token, table.name, place, [mine])
            tables.append(table.with_files(files, gone, num_shards=num_shards))
        tensors = {"mlp.weight": np.arange(6, dtype=np.float32).reshape(2, 3)}
        pending.write_dense(tensors if dense is None else dense)
        pending.write_workers(workers)
        return pending.commit(step=step, tables=tables, base=base, notes={"model": "test"})


def two_tables(seed: int = 0, count: int = 200) -> list[tuple[TableEntry, RowChunk]]:
    """Return rows of both tables."""
    return [
        (ADS, synthetic_rows(ADS, range(count), seed)),
        (WORDS, synthetic_rows(WORDS, range(2**63, 2**63 + count // 2), seed + 1)),
    ]


def contents(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return everything in a checkpoint, for comparison."""
    return {
        "step": checkpoint.manifest.step,
        "rows": {
            table.name: as_table(checkpoint.rows(table.name))
            for table in checkpoint.manifest.tables
        },
        "dense": {name: array.tobytes() for name, array in checkpoint.dense().items()},
        "workers": checkpoint.workers(),
    }
