"""Training that is stopped and resumed, and the contents of its checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sparsefleet.checkpoint import Checkpoint
from sparsefleet.fleet import Fleet, RoleInfo
from sparsefleet.nn import SparseEmbeddingBag
from sparsefleet.train import Trainer, TrainerConfig

Batches = list[tuple[Tensor, Tensor]]

_SEEDING = Lock()


class StoppedError(Exception):
    """Ends a training in the middle."""


class DropoutClicks(nn.Module):
    """ids int64[B, 3] -> logits float32[B], with dropout and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = SparseEmbeddingBag("ads", 4)
        self.norm = nn.BatchNorm1d(4)
        self.dropout = nn.Dropout(0.3)
        self.head = nn.Linear(4, 1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.dropout(self.norm(self.rows(ids)))).squeeze(1)


def click_batches(num_batches: int, seed: int = 0, size: int = 16) -> Batches:
    generator = torch.Generator().manual_seed(seed)
    batches = []
    for _ in range(num_batches):
        ids = torch.randint(0, 60, (size, 3), generator=generator)
        batches.append((ids, (ids.float().mean(1) < 30).float()))
    return batches


def make_trainer(
    endpoints: Sequence[str] = (), index: int = 0, num_workers: int = 1, **options: Any
) -> Trainer:
    """Return a trainer with Adam, in this process or in a job, with the same initial values every
    time.
    """
    model = options.pop("model", None)
    with _SEEDING:  # workers in threads share torch's generator
        torch.manual_seed(0)
        model = model or DropoutClicks()
    optimizer = options.pop("optimizer", None) or torch.optim.Adam(model.parameters(), lr=0.01)
    fleet = Fleet()
    if endpoints:
        fleet.init(
            RoleInfo(
                kind="worker",
                index=index,
                worker_num=num_workers,
                server_endpoints=tuple(endpoints),
            )
        )
    config = options.pop("config", TrainerConfig(quiet=True))
    return Trainer(model, nn.BCEWithLogitsLoss(), optimizer, config=config, fleet=fleet, **options)


class BreakingData:
    """Batches that can be iterated repeatedly, until `stop_at` have been given in total."""

    def __init__(self, batches: Batches, stop_at: int | None = None) -> None:
        self._batches = batches
        self._left = stop_at

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in self._batches:
            if self._left is not None:
                if self._left == 0:
                    raise StoppedError("the data has come to the end of the test")
                self._left -= 1
            yield batch


def contents(path: Path | str) -> dict[str, Any]:
    """Return everything in a checkpoint as arrays by name, rows in key order."""
    checkpoint = Checkpoint.open(str(path))
    checkpoint.verify()
    found: dict[str, Any] = dict(checkpoint.dense())
    for table in checkpoint.manifest.tables:
        chunks = list(checkpoint.rows(table.name))
        columns = [np.concatenate(column) for column in zip(*chunks, strict=True)] if chunks else []
        if columns:
            order = np.argsort(columns[0])
            names = ("keys", "values", "state", "counters")
            for name, column in zip(names, columns, strict=True):
                found[f"{table.name}:{name}"] = column[order]
    return found


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Compare bit for bit."""
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name], err_msg=name)
