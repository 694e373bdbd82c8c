"""Records per second from files into batches, compared with others, and the cost of reading in
training.

make bench            or    python bench/reader.py [--quick] [--repeats 5] [--json FILE]

The files are synthetic, in Criteo's format: 13 numbers, 26 ids, a label. All sides of a table are
measured in one run, in turn; those in Python read fewer files because they are slow. CPU is user
and system time, including children: on a shared machine it says more than rates do.

torch: a DataLoader whose dataset parses the same lines in Python.
Paddle 1.8.5: its QueueDataset, see bench/paddle_reader.py; omitted if it is not available.
pipe: our reader behind a generator script in Python, as users of the original have it.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping
from dataclasses import astuple
from pathlib import Path
from typing import Any

import torch

from measure import (
    console,
    judge,
    machine,
    note,
    parse_arguments,
    report,
    take_turns,
    write_json,
)
from paddle_environment import find_paddle
from reader_files import RAGGED_SLOTS, SLOTS, write_files, write_parquet, write_ragged
from reader_sides import (
    BATCH,
    THREADS,
    Pass,
    cpu_of,
    criteo_sides,
    multi_slot_sides,
    paddle_sides,
    parquet_sides,
    rate_of,
)
from reader_training import loss_by_reading, training_sides
from sparsefleet.data import MemoryData, MultiSlot, Reader

NUM_FILES = 8
NUM_LINES = {False: 40_000, True: 1_000}
"""Lines per file, by --quick."""
NUM_ROWS = {False: 2_000_000, True: 50_000}
"""Rows of the Parquet file."""
TARGET_TORCH = 8.0
TARGET_PADDLE = 3.0
TARGET_PIPE = 10.0
TARGET_PARQUET = 1_200_000
TARGET_LOSS = 0.10
TARGET_MEMORY = 1.3

Taken = Mapping[str, list[Pass]]


def report_passes(title: str, taken: Taken) -> None:
    rows = []
    for name, passes in taken.items():
        rates = [one.records_per_s for one in passes]
        spread = f"{min(rates):,.0f} .. {max(rates):,.0f}"
        rows.append([name, f"{rate_of(passes):,.0f}", spread, f"{cpu_of(passes):.2f}"])
    report(title, ["", "records/s", "range", "CPU us/record"], rows)


def report_growth(taken: Taken) -> None:
    one, two = (taken[f"ours, {text}"] for text in THREADS.values())
    note(
        f"from 1 to 2 threads {rate_of(two) / rate_of(one):.2f}x; records a second of CPU "
        f"{1e6 / cpu_of(one):,.0f} with 1, {1e6 / cpu_of(two):,.0f} with 2"
    )


def report_ratio(taken: Taken, ours: str, theirs: str, target: float) -> None:
    ratio = rate_of(taken[ours]) / rate_of(taken[theirs])
    of_cpu = cpu_of(taken[theirs]) / cpu_of(taken[ours])
    text = f"{ours} over {theirs}: {ratio:.1f}x, by CPU {of_cpu:.1f}x (target >= {target:g})"
    judge(text, ratio >= target)


def measure_multi_slot(
    files: list[Path], num_lines: int, repeats: int, python: Path | None
) -> Taken:
    with tempfile.TemporaryDirectory() as folder:
        with paddle_sides(python, Path(folder), files, num_lines) as paddles:
            taken = take_turns({**multi_slot_sides(files, num_lines), **paddles}, repeats)
    report_passes("MultiSlot text", taken)
    report_growth(taken)
    faster = max(
        (name for name in taken if name.startswith("torch")), key=lambda n: rate_of(taken[n])
    )
    report_ratio(taken, "ours, 1 thread", "torch, in process", TARGET_TORCH)
    report_ratio(taken, "ours, 2 threads", faster, TARGET_TORCH)
    for text in THREADS.values() if paddles else ():
        report_ratio(taken, f"ours, {text}", f"Paddle 1.8.5, {text}", TARGET_PADDLE)
    return taken


def measure_criteo(files: list[Path], num_lines: int, repeats: int) -> Taken:
    taken = take_turns(criteo_sides(files, num_lines), repeats)
    report_passes("Criteo logs", taken)
    report_growth(taken)
    for text in THREADS.values():
        report_ratio(taken, f"ours, {text}", f"pipe, {text}", TARGET_PIPE)
    return taken


def measure_parquet(folder: Path, num_rows: int, repeats: int) -> Taken:
    path = folder / "rows.parquet"
    write_parquet(path, num_rows)
    taken = take_turns(parquet_sides(path, num_rows), repeats)
    report_passes("Parquet, 10 columns", taken)
    report_growth(taken)
    for text in THREADS.values():
        share = rate_of(taken[f"ours, {text}"]) / rate_of(taken[f"pyarrow, {text}"])
        note(f"ours, {text}: {share:.0%} of the rate of pyarrow, {text}")
    rate = 1e6 / cpu_of(taken["ours, 1 thread"])
    text = f"{rate:,.0f} rows a second of CPU (target >= {TARGET_PARQUET:,})"
    judge(text, rate >= TARGET_PARQUET)
    return taken


def measure_training(slot_files: list[Path], raw_files: list[Path], repeats: int) -> dict[str, Any]:
    taken = take_turns(training_sides(slot_files, raw_files, BATCH), repeats)
    rows = []
    for name, passes in taken.items():
        rates = [one.examples_per_s for one in passes]
        cpu = statistics.median(one.cpu_us_per_example for one in passes)
        waited = statistics.median(one.data_share for one in passes)
        spread = f"{min(rates):,.0f} .. {max(rates):,.0f}"
        rows.append(
            [name, f"{statistics.median(rates):,.0f}", spread, f"{cpu:.1f}", f"{waited:.1%}"]
        )
    title = "CTR-DNN, 1 thread trains, 1 reads"
    report(title, ["", "examples/s", "range", "CPU us/example", "waits for data"], rows)
    for name in ("MultiSlot", "Criteo"):
        loss = loss_by_reading(taken, name)
        text = f"{name}: reading costs {loss:.1%} of the rate (target < {TARGET_LOSS:.0%})"
        judge(text, loss < TARGET_LOSS)
    return {name: [astuple(one) for one in passes] for name, passes in taken.items()}


def measure_memory(folder: Path, num_lines: int) -> dict[str, float]:
    """Return the bytes of records in memory relative to those of their ids and floats."""
    write_ragged(folder / "ragged", num_lines)
    ratios = {}
    for name, path, slots in (
        ("one id a slot", folder / "slot-0", SLOTS),
        ("1 to 8 ids a slot", folder / "ragged", RAGGED_SLOTS),
    ):
        reader = Reader(path, MultiSlot(*slots), BATCH)
        with reader.begin_columns() as batches:
            payload = sum(values.nbytes for batch in batches for values, _ in batch)
        data = MemoryData(reader)
        data.local_shuffle(seed=0)
        ratios[name] = data.memory_bytes / payload
        text = f"in memory, shuffled, {name}: {ratios[name]:.3f}x its ids and floats"
        judge(f"{text} (target <= {TARGET_MEMORY:g})", ratios[name] <= TARGET_MEMORY)
    return ratios


def main() -> None:
    arguments = parse_arguments(__doc__ or "")
    torch.set_num_threads(1)
    num_lines, repeats = NUM_LINES[arguments.quick], arguments.repeats
    about = f"{num_lines * NUM_FILES:,} lines in {NUM_FILES} files, batches of {BATCH:,}, "
    console.print(f"[bold]Reading[/bold]: {about}medians of {repeats}. {machine()}")
    python, missing = find_paddle(may_install=not arguments.quick)
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_files(folder, NUM_FILES, num_lines)
        slot_files, raw_files = sorted(folder.glob("slot-*")), sorted(folder.glob("raw-*"))
        multi_slot = measure_multi_slot(slot_files, num_lines, repeats, python)
        if python is None:
            note(f"Paddle 1.8.5 was omitted: {missing}")
        criteo = measure_criteo(raw_files, num_lines, repeats)
        parquet = measure_parquet(folder, NUM_ROWS[arguments.quick], repeats)
        measured = {"multi_slot": multi_slot, "criteo": criteo, "parquet": parquet}
        for title, taken in measured.items():
            figures[title] = {n: [astuple(one) for one in passes] for n, passes in taken.items()}
        figures["training"] = measure_training(slot_files[:2], raw_files[:2], repeats)
        figures["memory"] = measure_memory(folder, num_lines)
    write_json(arguments.json, figures)


if __name__ == "__main__":
    main()
