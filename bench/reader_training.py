"""CTR-DNN trained from files beside the same training from memory, for bench/reader.py.

One training thread and one reading thread, so that on two cores each has its own. What the reading
costs the training is what the rate loses.
"""

from __future__ import annotations

import atexit
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ctr_batches import DIM, NUM_SLOTS
from ctr_sides import LR, layers
from reader_files import SLOTS
from sparsefleet import optim
from sparsefleet.data import CriteoTsv, MultiSlot, Reader, Slot
from sparsefleet.nn import SparseEmbedding
from sparsefleet.train import Trainer, TrainerConfig

ONE_ID_SLOTS = tuple(
    Slot(slot.name, slot.dtype, slot.shape if slot.shape is not None else ()) for slot in SLOTS
)
"""With one id a slot, columns are int64[B]."""


@dataclass(frozen=True, slots=True)
class TrainingPass:
    """One epoch."""

    examples_per_s: float
    cpu_us_per_example: float
    data_share: float
    """Of the training thread's time, by the trainer's own clock."""


class FromLogs(nn.Module):
    """Columns of `CriteoTsv` -> logits float32[B, 2]."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = SparseEmbedding("ids", DIM, optimizer=optim.SGD(lr=LR))
        self.layers = layers()

    def forward(self, counts: Tensor, categories: Tensor) -> Tensor:
        return self.layers(torch.cat([self.embedding(categories).flatten(1), counts], dim=1))


class FromSlots(FromLogs):
    """Columns of `ONE_ID_SLOTS` -> logits float32[B, 2]."""

    def forward(self, dense: Tensor, **slots: Tensor) -> Tensor:  # type: ignore[override]
        ids = torch.stack([slots[f"C{column}"] for column in range(1, NUM_SLOTS + 1)], dim=1)
        return super().forward(dense, ids)


def training_sides(
    slot_files: list[Path], raw_files: list[Path], batch_size: int
) -> dict[str, Callable[[], TrainingPass]]:
    """From each format: from memory, and from its files."""
    slots = Reader(slot_files, MultiSlot(*ONE_ID_SLOTS), batch_size, label="label")
    logs = Reader(raw_files, CriteoTsv(), batch_size, label="label")
    return {
        **_sides_of("MultiSlot", FromSlots(), slots),
        **_sides_of("Criteo", FromLogs(), logs),
    }


def _sides_of(name: str, model: nn.Module, reader: Reader) -> dict[str, Callable[[], TrainingPass]]:
    trainer = Trainer(
        model,
        _loss,
        torch.optim.SGD(model.parameters(), lr=LR),
        mode="local",
        config=TrainerConfig(quiet=True),
    )
    atexit.register(trainer.close)
    batches = list(reader)
    return {
        f"{name}, from memory": lambda: _train(trainer, batches),
        f"{name}, from files": lambda: _train(trainer, reader),
    }


def _loss(output: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output, labels.long())


def _train(trainer: Trainer, data: Any) -> TrainingPass:
    begun, cpu_begun_s = time.perf_counter(), time.process_time()
    history = trainer.fit(data)
    took_s, cpu_s = time.perf_counter() - begun, time.process_time() - cpu_begun_s
    examples = history.examples
    data_share = history.time_shares.shares()["data"]
    return TrainingPass(examples / took_s, 1e6 * cpu_s / examples, data_share)


def loss_by_reading(taken: dict[str, list[TrainingPass]], name: str) -> float:
    """Part of the rate that is lost, of the medians; below 0 where nothing is."""

    def rate(side: str) -> float:
        return statistics.median(one.examples_per_s for one in taken[f"{name}, {side}"])

    return 1 - rate("from files") / rate("from memory")
