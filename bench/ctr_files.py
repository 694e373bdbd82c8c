"""Examples of CTR-DNN as MultiSlot files: the numbers, slots of one id each, the click."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ctr_batches import Batch, make_batches


def write_slot_files(folder: Path, name: str, batches: Sequence[Batch]) -> list[Path]:
    """Write one file per batch."""
    paths = []
    for index, batch in enumerate(batches):
        paths.append(folder / f"{name}-{index}")
        paths[-1].write_text(slot_lines(batch))
    return paths


def drawn_files(folder: Path, name: str, num_files: int, lines_per_file: int) -> list[Path]:
    """Write examples like those in memory."""
    batches = [make_batches(1, lines_per_file, seed=index)[0] for index in range(num_files)]
    return write_slot_files(folder, name, batches)


def slot_lines(batch: Batch) -> str:
    """Return one line per example."""
    lines = []
    for numbers, ids, click in zip(*(part.tolist() for part in batch), strict=True):
        counts = " ".join(f"{number:.6g}" for number in numbers)
        slots = " ".join(f"1 {id_}" for id_ in ids)
        lines.append(f"{len(numbers)} {counts} {slots} 1 {click}\n")
    return "".join(lines)
