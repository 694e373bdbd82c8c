"""A model of two days: checkpoints, exports and examples, made once for a test process."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import torch
from torch import Tensor, nn

from sparsefleet import Trainer, TrainerConfig, optim
from sparsefleet.nn import SparseEmbedding, SparseEmbeddingBag
from sparsefleet.store import Normal

SLOTS = 4
IDS = 40


class Clicks(nn.Module):
    """Slots of ids, a ragged list of tags and counts, through two layers."""

    def __init__(self, hidden: int = 8) -> None:
        super().__init__()
        wide, adagrad = Normal(0.0, 0.3), optim.Adagrad(lr=0.1)
        self.ids = SparseEmbedding("ids", 4, initializer=wide, optimizer=adagrad)
        self.tags = SparseEmbeddingBag(
            "tags", 3, padding_idx=0, initializer=wide, optimizer=adagrad
        )
        self.hidden = nn.Linear(SLOTS * 4 + 3 + 2, hidden)
        self.score = nn.Linear(hidden, 1)

    def forward(self, counts: Tensor, ids: Tensor, tags: tuple[Tensor, Tensor]) -> Tensor:
        """float32[B, 2], int64[B, 4] and ragged int64 -> logits float32[B]."""
        wide = torch.cat([self.ids(ids).flatten(1), self.tags(tags), counts], 1)
        return self.score(self.hidden(wide).relu()).squeeze(1)


def batch(size: int, seed: int) -> tuple[dict[str, Any], np.ndarray]:
    """Inputs by name, and labels with a signal in the first slot and the first count."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, IDS, (size, SLOTS)) + np.arange(SLOTS) * IDS + 100
    counts = np.log1p(rng.integers(0, 9, (size, 2))).astype(np.float32)
    lengths = rng.integers(0, 4, size)
    starts = np.concatenate([[0], lengths.cumsum()])[:-1]
    tags = rng.integers(0, IDS, lengths.sum())
    chance = 1 / (1 + np.exp(-(ids[:, 0] % 5 - 2 + counts[:, 0])))
    labels = (rng.random(size) < chance).astype(np.float32)
    return {"counts": counts, "ids": ids, "tags": (tags, starts)}, labels


class Days(NamedTuple):
    """Everything that two days of training produce; do not modify it."""

    folder: Path
    checkpoint: Path
    """Of day 2."""
    export: Path
    """Of day 2."""
    old_checkpoint: Path
    old_export: Path
    examples: Path
    """Parquet, with the column "click" of labels."""


@functools.cache
def days() -> Days:
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    torch.manual_seed(0)
    with trainer_of(Clicks()) as trainer:
        for day in (1, 2):
            trainer.fit([batch(64, seed=100 * day + step) for step in range(10)])
            trainer.save(folder / f"checkpoint-{day}")
            example = batch(24, seed=7)
            trainer.export(folder / f"export-{day}", example, onnx=day == 2)
    examples = folder / "examples.parquet"
    inputs, labels = batch(200, seed=9)
    write_examples(examples, inputs, labels)
    return Days(
        folder,
        folder / "checkpoint-2",
        folder / "export-2",
        folder / "checkpoint-1",
        folder / "export-1",
        examples,
    )


def trainer_of(model: nn.Module, **options: Any) -> Trainer:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    config = TrainerConfig(quiet=True)
    return Trainer(model, nn.BCEWithLogitsLoss(), optimizer, config=config, **options)


def write_examples(path: Path, inputs: dict[str, Any], labels: np.ndarray | None = None) -> None:
    """Write inputs to a file, with lists where an example has several values."""
    values, starts = inputs["tags"]
    ends = [*starts[1:], len(values)]
    columns: dict[str, Any] = {name: list(inputs[name]) for name in inputs if name != "tags"}
    columns["tags"] = [values[begin:end].tolist() for begin, end in zip(starts, ends, strict=True)]
    if labels is not None:
        columns["click"] = labels.tolist()
    table = pa.table(columns)
    at = table.column_names.index("tags")
    if len(values) and np.asarray(values).dtype.kind == "i":
        table = table.set_column(at, "tags", table.column("tags").cast(pa.list_(pa.int64())))
    pyarrow.parquet.write_table(table, path)
