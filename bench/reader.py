"""Lines a second from text files into batches, beside the same work in Python.

make bench            or    python bench/reader.py [--quick] [--repeats 5] [--json FILE]

The files are synthetic, of Criteo's shape: 13 numbers, 26 ids, a label. Both sides of a ratio are
measured in one run, in turn. "torch" is a DataLoader whose dataset parses the same lines in Python.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from measure import console, interleave, machine, parse_arguments, report, write_json
from sparsefleet.data import CriteoTsv, MultiSlot, Reader, ReaderConfig, Slot

BATCH = 1000
NUM_FILES = 4
TARGET_TORCH = 8.0
TARGET_PIPE = 10.0

SLOTS = (
    Slot("dense", "float", (13,)),
    *(Slot(f"C{column}") for column in range(1, 27)),
    Slot("label", "float", ()),
)

# What a user's generator script does, lean: Criteo lines in, MultiSlot lines out.
GENERATOR = """
import math, sys, zlib
for line in sys.stdin:
    fields = line.rstrip("\\n").split("\\t")
    dense = " ".join("%.6g" % (math.log1p(max(int(x), 0)) if x else 0.0) for x in fields[1:14])
    ids = " ".join("1 %d" % zlib.crc32(("%d:%s" % x).encode()) for x in enumerate(fields[14:]))
    sys.stdout.write("13 %s %s 1 %s\\n" % (dense, ids, fields[0]))
"""


def write_files(folder: Path, num_lines: int) -> None:
    """`slot-*` in MultiSlot, `raw-*` in Criteo's own layout."""
    for index in range(NUM_FILES):
        rng = np.random.default_rng(index)
        counts = rng.integers(0, 5000, (num_lines, 13))
        ids = rng.integers(0, 1_000_001, (num_lines, 26))
        clicks = rng.integers(0, 2, num_lines)
        slot_lines, raw_lines = [], []
        for count, id_, click in zip(counts.tolist(), ids.tolist(), clicks.tolist(), strict=True):
            dense = " ".join(f"{x / 5000:.6g}" for x in count)
            slot_lines.append(f"13 {dense} {' '.join(f'1 {x}' for x in id_)} 1 {click}\n")
            texts = "\t".join(f"{x * 4001:08x}" for x in id_)
            raw_lines.append(f"{click}\t{chr(9).join(map(str, count))}\t{texts}\n")
        (folder / f"slot-{index}").write_text("".join(slot_lines))
        (folder / f"raw-{index}").write_text("".join(raw_lines))


class PythonLines(IterableDataset):  # type: ignore[type-arg]
    """Batches parsed in Python; files are split over the workers of the DataLoader."""

    def __init__(self, files: list[Path]) -> None:
        self.files = files

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = get_worker_info()
        files = self.files if worker is None else self.files[worker.id :: worker.num_workers]
        lines: list[str] = []
        for path in files:
            with open(path) as file:
                for line in file:
                    lines.append(line)
                    if len(lines) == BATCH:
                        yield columns_of(lines)
                        lines = []
        if lines:
            yield columns_of(lines)


def columns_of(lines: list[str]) -> dict[str, Any]:
    """The batch that the native parser makes of the same lines."""
    values: list[list[Any]] = [[] for _ in SLOTS]
    offsets: list[list[int]] = [[0] for _ in SLOTS]
    for line in lines:
        words = line.split()
        at = 0
        for index, slot in enumerate(SLOTS):
            end = at + 1 + int(words[at])
            values[index].extend(map(float if slot.dtype == "float" else int, words[at + 1 : end]))
            offsets[index].append(len(values[index]))
            at = end
    batch: dict[str, Any] = {}
    for index, slot in enumerate(SLOTS):
        dtype = torch.float32 if slot.dtype == "float" else torch.int64
        column = torch.tensor(values[index], dtype=dtype)
        if slot.shape is None:
            batch[slot.name] = (column, torch.tensor(offsets[index][:-1]))
        else:
            batch[slot.name] = column.reshape(-1, *slot.shape)
    return batch


def rate_of(make: Callable[[], Any], num_lines: int) -> float:
    """Lines a second of one pass over what `make` gives, from its making to its last batch."""
    begun = time.perf_counter()
    for _ in make():
        pass
    return num_lines / (time.perf_counter() - begun)


def sides_of(folder: Path, num_lines: int) -> dict[str, Callable[[], float]]:
    slot_files = sorted(folder.glob("slot-*"))
    raw_files = sorted(folder.glob("raw-*"))
    multi_slot = MultiSlot(*SLOTS)
    pipe = ReaderConfig(pipe_command=[sys.executable, "-S", "-c", GENERATOR])

    def torch_loader(workers: int) -> DataLoader[Any]:
        return DataLoader(PythonLines(slot_files), batch_size=None, num_workers=workers)

    makers: dict[str, Callable[[], Any]] = {
        "MultiSlot, 1 thread": lambda: Reader(slot_files, multi_slot, BATCH),
        "MultiSlot, 2 threads": lambda: Reader(slot_files, multi_slot, BATCH, threads=2),
        "MultiSlot, torch, in process": lambda: torch_loader(0),
        "MultiSlot, torch, 2 workers": lambda: torch_loader(2),
        "Criteo, 1 thread": lambda: Reader(raw_files, CriteoTsv(), BATCH),
        "Criteo, 2 threads": lambda: Reader(raw_files, CriteoTsv(), BATCH, threads=2),
        "Criteo, Python pipe, 1 thread": lambda: Reader(raw_files, multi_slot, BATCH, config=pipe),
        "Criteo, Python pipe, 2 threads": lambda: Reader(
            raw_files, multi_slot, BATCH, threads=2, config=pipe
        ),
    }
    return {name: lambda make=make: rate_of(make, num_lines) for name, make in makers.items()}


def main() -> None:
    arguments = parse_arguments(__doc__ or "")
    torch.set_num_threads(1)
    num_lines = 2_000 if arguments.quick else 25_000
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_files(folder, num_lines)
        total = num_lines * NUM_FILES
        console.print(f"[bold]Reader[/bold]: {total:,} lines in {NUM_FILES} files, ", end="")
        console.print(f"batches of {BATCH:,}. {machine()}")
        taken = interleave(sides_of(folder, total), arguments.repeats)
    rows = [
        [name, f"{median:,.0f}", f"{low:,.0f}", f"{high:,.0f}"]
        for name, (median, low, high) in taken.items()
    ]
    report("lines a second", ["side", "median", "min", "max"], rows)

    def ratio(left: str, right: str) -> float:
        return taken[left][0] / taken[right][0]

    ratios = {
        "multi_slot_over_torch_1": ratio("MultiSlot, 1 thread", "MultiSlot, torch, in process"),
        "multi_slot_over_torch_2": ratio("MultiSlot, 2 threads", "MultiSlot, torch, 2 workers"),
        "criteo_over_pipe_1": ratio("Criteo, 1 thread", "Criteo, Python pipe, 1 thread"),
        "criteo_over_pipe_2": ratio("Criteo, 2 threads", "Criteo, Python pipe, 2 threads"),
        "multi_slot_growth": ratio("MultiSlot, 2 threads", "MultiSlot, 1 thread"),
    }
    console.print(
        f"MultiSlot over torch {ratios['multi_slot_over_torch_1']:.1f}x with one core, "
        f"{ratios['multi_slot_over_torch_2']:.1f}x with two (target >= {TARGET_TORCH:g}); "
        f"Criteo over a Python pipe {ratios['criteo_over_pipe_1']:.1f}x, "
        f"{ratios['criteo_over_pipe_2']:.1f}x (target >= {TARGET_PIPE:g}); "
        f"1 to 2 threads {ratios['multi_slot_growth']:.2f}x"
    )
    write_json(arguments.json, {"lines_per_second": taken, "ratios": ratios})


if __name__ == "__main__":
    main()
