"""The sides that read the files of bench/reader.py: ours, a torch DataLoader, Paddle, a Python
pipe.
"""

from __future__ import annotations

import contextlib
import json
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from ctr_batches import NUM_COUNTS, NUM_SLOTS
from measure import ROOT
from reader_files import PARQUET_SLOTS, SLOTS
from reader_in_python import GENERATOR, torch_loader
from side_processes import READY_S, SECTION_S, SideProcess
from sparsefleet.data import CriteoTsv, MultiSlot, Parquet, Reader, ReaderConfig

BATCH = 1000
SLOW_FILES = 2
"""How many files the sides in Python read."""
THREADS = {1: "1 thread", 2: "2 threads"}


@dataclass(frozen=True, slots=True)
class Pass:
    """Read all records of some files once."""

    records_per_s: float
    cpu_us_per_record: float
    """User and system time, including children."""


Side = Callable[[], Pass]


def rate_of(passes: Sequence[Pass]) -> float:
    """Median."""
    return statistics.median(one.records_per_s for one in passes)


def cpu_of(passes: Sequence[Pass]) -> float:
    """Median."""
    return statistics.median(one.cpu_us_per_record for one in passes)


def cpu_s() -> float:
    """Return the CPU seconds of this process and its finished children."""
    taken = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in taken)


def side_of(make: Callable[..., Any], num_records: int, *arguments: Any) -> Side:
    """Time a pass over `make(*arguments)`, from its creation to its last batch."""

    def run() -> Pass:
        begun, cpu_begun_s = time.perf_counter(), cpu_s()
        for _ in make(*arguments):
            pass
        took_s, cpu_taken_s = time.perf_counter() - begun, cpu_s() - cpu_begun_s
        return Pass(num_records / took_s, 1e6 * cpu_taken_s / num_records)

    return run


def multi_slot_sides(files: list[Path], lines_per_file: int) -> dict[str, Side]:
    format_ = MultiSlot(*SLOTS)
    few = files[:SLOW_FILES]

    def ours(threads: int) -> Reader:
        return Reader(files, format_, BATCH, threads=threads)

    def torchs(workers: int) -> Any:
        return torch_loader(few, BATCH, workers)

    num_lines, num_few = lines_per_file * len(files), lines_per_file * len(few)
    return {
        **{f"ours, {text}": side_of(ours, num_lines, count) for count, text in THREADS.items()},
        "torch, in process": side_of(torchs, num_few, 0),
        "torch, 2 workers": side_of(torchs, num_few, 2),
    }


def criteo_sides(files: list[Path], lines_per_file: int) -> dict[str, Side]:
    multi_slot = MultiSlot(*SLOTS)
    config = ReaderConfig(pipe_command=[sys.executable, "-S", "-c", GENERATOR])
    few = files[:SLOW_FILES]

    def ours(threads: int) -> Reader:
        return Reader(files, CriteoTsv(), BATCH, threads=threads)

    def piped(threads: int) -> Reader:
        return Reader(few, multi_slot, BATCH, threads=threads, config=config)

    num_lines, num_few = lines_per_file * len(files), lines_per_file * len(few)
    return {
        **{f"ours, {text}": side_of(ours, num_lines, count) for count, text in THREADS.items()},
        **{f"pipe, {text}": side_of(piped, num_few, count) for count, text in THREADS.items()},
    }


def parquet_sides(path: Path, num_rows: int) -> dict[str, Side]:
    """Plain pyarrow returns record batches of the same columns, in its own sizes."""
    names = [slot.name for slot in PARQUET_SLOTS]
    format_ = Parquet(*PARQUET_SLOTS)

    def ours(threads: int) -> Reader:
        return Reader(path, format_, BATCH, threads=threads)

    def pyarrows(threads: int) -> Iterator[Any]:
        with pq.ParquetFile(path) as file:
            yield from file.iter_batches(columns=names, use_threads=threads > 1)

    return {
        f"{name}, {text}": side_of(make, num_rows, count)
        for name, make in (("ours", ours), ("pyarrow", pyarrows))
        for count, text in THREADS.items()
    }


@contextlib.contextmanager
def paddle_sides(
    python: Path | None, folder: Path, files: list[Path], lines_per_file: int
) -> Iterator[dict[str, Side]]:
    """None without a `python`. Paddle runs in `folder`, because it leaves files behind."""
    if python is None:
        yield {}
        return
    num_lines = lines_per_file * len(files)
    words = [ROOT / "bench" / "paddle_reader.py", BATCH, NUM_COUNTS, NUM_SLOTS, *files]
    paddle = SideProcess([str(python), *map(str, words)], {}, folder)
    try:
        paddle.wait_for("^ready$", READY_S)

        def run(threads: int) -> Pass:
            paddle.send(str(threads))
            took = json.loads(paddle.wait_for(r"^\{.*\}$", SECTION_S).group())
            return Pass(num_lines / took["seconds"], 1e6 * took["cpu_s"] / num_lines)

        yield {
            f"Paddle 1.8.5, {text}": lambda count=count: run(count)
            for count, text in THREADS.items()
        }
    finally:
        paddle.close()
