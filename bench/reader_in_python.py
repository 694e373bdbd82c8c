"""The work of bench/reader.py in Python: a torch DataLoader that parses, a generator for a pipe."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from reader_files import SLOTS

# A minimal version of a user's generator script: Criteo lines in, MultiSlot lines out.
GENERATOR = """
import math, sys, zlib
for line in sys.stdin:
    fields = line.rstrip("\\n").split("\\t")
    dense = " ".join("%.6g" % (math.log1p(max(int(x), 0)) if x else 0.0) for x in fields[1:14])
    ids = " ".join("1 %d" % zlib.crc32(("%d:%s" % x).encode()) for x in enumerate(fields[14:]))
    sys.stdout.write("13 %s %s 1 %s\\n" % (dense, ids, fields[0]))
"""


def torch_loader(files: list[Path], batch_size: int, workers: int) -> DataLoader[Any]:
    """Return batches like the native reader's, made by `workers` processes or by this one."""
    return DataLoader(PythonLines(files, batch_size), batch_size=None, num_workers=workers)


class PythonLines(IterableDataset):  # type: ignore[type-arg]
    """Batches parsed in Python; files are divided among the workers of the DataLoader."""

    def __init__(self, files: list[Path], batch_size: int) -> None:
        self.files = files
        self.batch_size = batch_size

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = get_worker_info()
        files = self.files if worker is None else self.files[worker.id :: worker.num_workers]
        lines: list[str] = []
        for path in files:
            with open(path) as file:
                for line in file:
                    lines.append(line)
                    if len(lines) == self.batch_size:
                        yield columns_of(lines)
                        lines = []
        if lines:
            yield columns_of(lines)


def columns_of(lines: list[str]) -> dict[str, Any]:
    """Return the batch that the native parser makes of the same lines."""
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
