"""Memory of records while they are loaded, shuffled and iterated."""

from __future__ import annotations

import random
import subprocess
import sys
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


MEASURED_LOAD = """
import sys
from sparsefleet.data import MemoryData, MultiSlot, Reader, Slot

def told(name):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))

slots = MultiSlot(*[Slot(f"c{i}") for i in range(int(sys.argv[2]))])
before = told("VmRSS")
data = MemoryData(Reader(sys.argv[1], slots, 1000), drop_zeros=True)
print(data.memory_bytes, told("VmHWM") - before, told("VmRSS") - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells the memory of a process")
@pytest.mark.parametrize("num_slots", [1, 8])
def test_loading_needs_little_beyond_the_records(tmp_path: Path, num_slots: int) -> None:
    rng = random.Random(1)
    lines = []
    for _ in range(1000):
        counts = [rng.randint(30, 50) // num_slots for _ in range(num_slots)]
        lines.append(" ".join(f"{n} {' '.join(['12345'] * n)}" for n in counts))
    (tmp_path / "part").write_text("".join(f"{line}\n" for line in lines) * 250)
    command = [sys.executable, "-c", MEASURED_LOAD, str(tmp_path / "part"), str(num_slots)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    held, peak, after = map(int, done.stdout.split())
    assert held > 50e6
    assert peak < 1.5 * held  # with what is being parsed, which does not grow with the data
    assert after < 1.4 * held


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
