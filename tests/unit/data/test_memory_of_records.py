"""What records in memory weigh, while they are loaded, shuffled and iterated."""

from __future__ import annotations

import random
import tracemalloc
from pathlib import Path

import pytest

from sparsefleet.data import MemoryData, MultiSlot, Reader, Slot

CRITEO_SHAPE = MultiSlot(
    Slot("dense", "float", (13,)), *[Slot(f"c{i}") for i in range(26)], Slot("click", "uint64", ())
)
NUM_RECORDS = 20_000


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lines of Criteo's shape; two of the slots have up to three ids."""
    rng = random.Random(1)
    dense = " ".join(["0.5"] * 13)
    lines = []
    for _ in range(NUM_RECORDS):
        ids = [f"1 {rng.randrange(1, 2**63)}"] * 24
        ids += [f"{n} {' '.join(['7'] * n)}" for n in (rng.randint(1, 3), rng.randint(1, 3))]
        lines.append(f"13 {dense} {' '.join(ids)} 1 1")
    file = tmp_path_factory.mktemp("memory") / "part"
    file.write_text("\n".join(lines))
    return file


def bytes_of_values(data: MemoryData) -> int:
    total = 0
    for batch in data:
        for column in batch.values():
            total += (column[0] if isinstance(column, tuple) else column).nbytes
    return total


def test_records_weigh_their_ids_and_floats_and_little_more(path: Path) -> None:
    data = MemoryData(Reader(path, CRITEO_SHAPE, 1000), drop_zeros=True)
    values = bytes_of_values(data)
    assert values <= data.memory_bytes <= 1.05 * values
    data.local_shuffle(seed=1)
    assert data.memory_bytes <= 1.1 * values


def test_loading_needs_little_beyond_the_records(path: Path) -> None:
    reader = Reader(path, CRITEO_SHAPE, 1000)
    tracemalloc.start()
    try:
        data = MemoryData(reader, drop_zeros=True)
        # Native blocks are not traced: they weigh what the data does, and go column by column.
        _, peak = tracemalloc.get_traced_memory()
        assert peak <= 1.3 * data.memory_bytes
    finally:
        tracemalloc.stop()


def test_shuffling_permutes_and_does_not_copy(path: Path) -> None:
    data = MemoryData(Reader(path, CRITEO_SHAPE, 1000))
    tracemalloc.start()
    try:
        data.local_shuffle(seed=1)
        _, peak = tracemalloc.get_traced_memory()
        assert peak <= 4 * NUM_RECORDS + 100_000
        data.shuffle_slots(["c1", "c2"], seed=2)
        _, peak = tracemalloc.get_traced_memory()
        assert peak <= 2 * 4 * NUM_RECORDS + 100_000
    finally:
        tracemalloc.stop()
