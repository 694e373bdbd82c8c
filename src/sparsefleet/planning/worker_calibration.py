"""Measures the cost of a training step in a worker, with models of several sizes."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from sparsefleet.engine.events import StepDone
from sparsefleet.nn import SparseEmbedding
from sparsefleet.optim import SGD
from sparsefleet.planning.costs import WorkerCosts
from sparsefleet.train import Trainer, TrainerConfig

__all__ = ["calibrate_worker"]

_NUM_IDS = 200_000
_SECONDS = 0.6
_SIZES = (
    (64, 26, 8, 0),
    (1024, 26, 8, 0),
    (1024, 26, 64, 0),
    (256, 26, 8, 400),
    (1024, 26, 8, 400),
    (1024, 4, 64, 400),
)
"""The models to measure: batch size, ids per example, floats per row, width of three layers."""


class _Model(nn.Module):
    """A model with a lookup and, if a width is given, three layers over the concatenated rows."""

    def __init__(self, ids: int, dim: int, width: int) -> None:
        super().__init__()
        self.rows = SparseEmbedding("ids", dim, optimizer=SGD(lr=0.01))
        widths = [ids * dim, *([width] * 3 if width else []), 1]
        parts: list[nn.Module] = []
        for wide, narrow in itertools.pairwise(widths):
            parts += [nn.Linear(wide, narrow), nn.ReLU()]
        self.layers = nn.Sequential(*parts[:-1])

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.layers(self.rows(ids).flatten(1)).squeeze(1)
        return found

    @property
    def num_dense(self) -> int:
        return sum(each.numel() for each in self.layers.parameters())


def calibrate_worker() -> WorkerCosts:
    """Measure and return the costs of steps in this process, on one core; takes a few seconds."""
    columns, seconds, variations = [], [], []
    for batch, ids, dim, width in _SIZES:
        model = _Model(ids, dim, width)
        durations = _step_times(model, batch, ids)
        looked_up = batch * ids
        columns.append([1.0, looked_up, looked_up * dim, 6.0 * batch * model.num_dense])
        seconds.append(statistics.median(durations))
        variations.append(_variation(durations))
    solved, *_ = np.linalg.lstsq(
        np.array(columns) / np.array(seconds)[:, None], np.ones(len(seconds)), rcond=None
    )
    step_s, id_s, float_s, operation_s = (max(float(value), 1e-13) for value in solved)
    return WorkerCosts(
        step_s=step_s,
        id_s=id_s,
        float_s=float_s,
        flops=1.0 / operation_s,
        variation=statistics.median(variations),
    )


def _step_times(model: _Model, batch: int, ids: int) -> list[float]:
    random = np.random.default_rng(0)
    drawn = (random.zipf(1.2, (8, batch, ids)) % _NUM_IDS).astype(np.int64)
    labels = torch.from_numpy((random.random(batch) < 0.3).astype(np.float32))
    batches = [(torch.from_numpy(part), labels) for part in drawn]
    trainer = Trainer(
        model,
        nn.functional.binary_cross_entropy_with_logits,
        SGD(lr=0.01),
        mode="local",
        config=TrainerConfig(quiet=True),
    )
    ends: list[float] = []
    with trainer:
        trainer.fit(batches)  # creates rows and plans lookups
        events = trainer._worker().events
        with events.temporary():
            events.subscribe(StepDone, lambda _: ends.append(time.thread_time()))
            end = time.monotonic() + _SECONDS
            while time.monotonic() < end:
                ends.append(float("nan"))
                trainer.fit(batches)
    return [b - a for a, b in itertools.pairwise(ends) if b > a]


def _variation(durations: Sequence[float]) -> float:
    """Return the variation of step times as a fraction of their mean, ignoring the slowest
    tenth.
    """
    kept = sorted(durations)[: max(2, len(durations) * 9 // 10)]
    return statistics.pstdev(kept) / statistics.fmean(kept)
