"""Files for bench/reader.py: the examples of bench/ctr_dnn.py as MultiSlot text and Criteo logs.

Letters: B examples, F slots.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ctr_batches import NUM_COUNTS, NUM_SLOTS, Batch, make_batches
from ctr_files import slot_lines
from sparsefleet.data import Slot

SLOTS = (
    Slot("dense", "float", (NUM_COUNTS,)),
    *(Slot(f"C{column}") for column in range(1, NUM_SLOTS + 1)),
    Slot("label", "float", ()),
)
RAGGED_SLOTS = (Slot("label", "float", ()), *(Slot(f"C{column}") for column in range(1, 9)))
PARQUET_SLOTS = (
    Slot("label", "float", ()),
    *(Slot(f"I{column}", "float", ()) for column in range(1, 4)),
    *(Slot(f"C{column}", "uint64", ()) for column in range(1, 7)),
)
"""Ten columns."""
ROW_GROUP_ROWS = 1 << 16
_LARGEST_COUNT = 5000


def write_files(folder: Path, num_files: int, num_lines: int) -> None:
    """`slot-*` in MultiSlot, `raw-*` in Criteo's own layout."""
    for index in range(num_files):
        [batch] = make_batches(1, num_lines, seed=index)
        (folder / f"slot-{index}").write_text(slot_lines(batch))
        (folder / f"raw-{index}").write_text(_raw_lines(batch))


def _raw_lines(batch: Batch) -> str:
    lines = []
    for numbers, ids, click in zip(*(part.tolist() for part in batch), strict=True):
        counts = "\t".join(str(int(number * _LARGEST_COUNT)) for number in numbers)
        texts = "\t".join(f"{id_ * 4001:08x}" for id_ in ids)
        lines.append(f"{click}\t{counts}\t{texts}\n")
    return "".join(lines)


def write_parquet(path: Path, num_rows: int) -> None:
    """Write the columns of `PARQUET_SLOTS`, and a text column that nobody reads."""
    rng = np.random.default_rng(0)
    columns: dict[str, object] = {
        slot.name: rng.random(num_rows, dtype=np.float32)
        if slot.dtype == "float"
        else rng.integers(0, 1_000_000, num_rows)
        for slot in PARQUET_SLOTS
    }
    columns["unused"] = [f"{number:08x}" for number in range(num_rows)]
    pq.write_table(pa.table(columns), path, row_group_size=ROW_GROUP_ROWS)


def write_ragged(path: Path, num_lines: int) -> None:
    """Write MultiSlot lines with 1 to 8 ids in each slot."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 9, (num_lines, len(RAGGED_SLOTS) - 1))
    lines = []
    for of_line in lengths.tolist():
        ids = rng.integers(0, 1_000_000, sum(of_line)).tolist()
        slots = [f"{size} {' '.join(str(ids.pop()) for _ in range(size))}" for size in of_line]
        lines.append(f"1 {len(lines) % 2} {' '.join(slots)}\n")
    path.write_text("".join(lines))
