"""What a training came to, epoch by epoch."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field

from sparsefleet.data import ReaderStats
from sparsefleet.train.time_shares import TimeShares

__all__ = ["Epoch", "History"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Epoch:
    """One pass over the data of this worker."""

    number: int
    """From 1."""

    examples: int
    """Examples learnt."""

    steps: int
    """Batches learnt."""

    skipped: int
    """Batches left out because their loss was not finite."""

    seconds: float
    """Wall time, validation not included."""

    loss: float
    """Mean loss of an example, each before it was learnt."""

    metrics: Mapping[str, float]
    """Metrics over the last batches (`TrainerConfig.metrics_window_batches`)."""

    validation: Mapping[str, float] | None = None
    """What `evaluate` gave for the validation data after the pass."""

    reading: ReaderStats | None = None
    """What was read for the pass; None where the data does not count."""

    @property
    def examples_per_s(self) -> float:
        """Examples a second, all threads of this worker together."""
        return self.examples / self.seconds if self.seconds > 0 else 0.0


@dataclass(kw_only=True, slots=True)
class History:
    """What `Trainer.fit` returns.

    >>> history = History(epochs=[
    ...     Epoch(number=1, examples=10, steps=1, skipped=0, seconds=2.0, loss=0.5, metrics={})
    ... ])
    >>> history.last.loss, history.examples, history.last.examples_per_s
    (0.5, 10, 5.0)
    """

    epochs: list[Epoch] = field(default_factory=list)
    """In order."""

    time_shares: TimeShares = field(default_factory=TimeShares)
    """Where the time of the training threads went, all epochs together."""

    bottleneck: str = ""
    """What held the training up, and what to do about it."""

    @property
    def reading(self) -> ReaderStats | None:
        """What was read in all epochs; None where the data does not count."""
        counted = [epoch.reading for epoch in self.epochs if epoch.reading is not None]
        return functools.reduce(operator.add, counted) if counted else None

    @property
    def last(self) -> Epoch:
        """The last epoch."""
        return self.epochs[-1]

    @property
    def examples(self) -> int:
        """Examples learnt in all epochs."""
        return sum(epoch.examples for epoch in self.epochs)

    @property
    def seconds(self) -> float:
        """Seconds of all epochs."""
        return sum(epoch.seconds for epoch in self.epochs)
