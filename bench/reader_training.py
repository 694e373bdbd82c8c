"""CTR-DNN trained from files and from memory, for bench/reader.py.

One training thread and one reading thread, so that each has its own core. The cost of reading is
the loss in rate.
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

from ctr_network import LR
from ctr_ours import ONE_ID_SLOTS, FleetModel, FleetModelOfSlots
from sparsefleet.data import CriteoTsv, MultiSlot, Reader
from sparsefleet.train import Trainer, TrainerConfig


@dataclass(frozen=True, slots=True)
class TrainingPass:
    """The result of one epoch."""

    examples_per_s: float
    cpu_us_per_example: float
    data_share: float
    """Share of the training thread's time, by the trainer's own clock."""


class FromLogs(FleetModel):
    """The model for the columns of `CriteoTsv`."""

    def forward(self, counts: Tensor, categories: Tensor) -> Tensor:
        return super().forward(counts, categories)


def training_sides(
    slot_files: list[Path], raw_files: list[Path], batch_size: int
) -> dict[str, Callable[[], TrainingPass]]:
    """Return the sides: each format from memory and from its files."""
    slots = Reader(slot_files, MultiSlot(*ONE_ID_SLOTS), batch_size, label="label")
    logs = Reader(raw_files, CriteoTsv(), batch_size, label="label")
    return {
        **_sides_of("MultiSlot", FleetModelOfSlots(), slots),
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
    """Return the share of the median rate that is lost; negative if there is a gain."""

    def rate(side: str) -> float:
        return statistics.median(one.examples_per_s for one in taken[f"{name}, {side}"])

    return 1 - rate("from files") / rate("from memory")
