"""Memory use depends on chunks, not on tables."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.support.checkpoints import ADS, synthetic_rows

from sparsefleet.checkpoint import Checkpoint, RowChunk
from sparsefleet.checkpoint.pending_checkpoint import PendingCheckpoint

CHUNKS, CHUNK_ROWS = 40, 30_000
TABLE_BYTES = CHUNKS * CHUNK_ROWS * 48  # of ADS


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    path = str(tmp_path_factory.mktemp("large"))
    with PendingCheckpoint.begin(path) as pending:
        files = pending.write_rows(ADS, 0, 1, large_table())
        pending.commit(step=0, tables=[ADS.with_files(files)])
    return Checkpoint.open(path)


def large_table() -> Iterator[RowChunk]:
    rows = synthetic_rows(ADS, range(CHUNK_ROWS))
    for number in range(CHUNKS):
        keys = rows.keys + np.uint64(number * CHUNK_ROWS)
        yield RowChunk(keys, rows.values.copy(), rows.state.copy(), rows.counters.copy())


def peak_bytes(run: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_writing_keeps_a_few_chunks(tmp_path: Path) -> None:
    def write() -> None:
        with PendingCheckpoint.begin(str(tmp_path)) as pending:
            pending.write_rows(ADS, 0, 1, large_table())

    assert peak_bytes(write) < TABLE_BYTES / 2


def test_reading_keeps_a_few_chunks(checkpoint: Checkpoint) -> None:
    pool = pa.default_memory_pool()
    largest = 0
    count = 0
    for chunk in checkpoint.rows("ads"):
        count += len(chunk.keys)
        largest = max(largest, pool.bytes_allocated())
    assert count == CHUNKS * CHUNK_ROWS
    assert largest < TABLE_BYTES / 2
