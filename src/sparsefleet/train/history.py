"""The results of a training run by epoch, and its summary."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sparsefleet.data import ReaderStats
from sparsefleet.engine.clock import TimeShares, describe_reading
from sparsefleet.engine.events import EvaluatedWithin, PassResult

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["Epoch", "History", "summary_lines", "summary_table"]


_WORTH_SHOWING = 0.005

_MEANING = {
    "data": "waiting for batches",
    "pull": "waiting for rows",
    "compute": "forward, loss, backward",
    "push": "handing over gradients",
    "wait": "waiting for other threads or for room in a queue",
    "other": "counting, interpreter",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Epoch:
    """One pass over the data of this worker."""

    number: int
    """The number of the epoch, counted from 1."""

    examples: int
    """Number of examples trained on."""

    steps: int
    """Number of batches trained on."""

    skipped: int
    """Number of batches skipped because their loss was not finite."""

    seconds: float
    """Wall time, including validations within the epoch but not the validation at its end."""

    loss: float
    """Mean loss per example, computed for each example before the model learns from it."""

    metrics: Mapping[str, float]
    """Metrics over the last batches (`TrainerConfig.metrics_window_batches`)."""

    validation: Mapping[str, float] | None = None
    """The result of `evaluate` on the validation data after the pass."""

    reading: ReaderStats | None = None
    """Reading statistics for the pass; None if the data keeps no counts."""

    @staticmethod
    def of(result: PassResult, metrics: Mapping[str, float]) -> Epoch:
        """Build an `Epoch` from the engine's pass result and the metrics over the last batches."""
        return Epoch(
            number=result.epoch,
            examples=result.examples,
            steps=result.steps,
            skipped=result.skipped,
            seconds=result.seconds,
            loss=result.loss,
            metrics=metrics,
            validation=result.validation,
            reading=result.reading,
        )

    @property
    def examples_per_s(self) -> float:
        """Examples per second over all threads of this worker."""
        return self.examples / self.seconds if self.seconds > 0 else 0.0


@dataclass(kw_only=True, slots=True)
class History:
    """The result of `Trainer.fit`.

    >>> history = History(epochs=[
    ...     Epoch(number=1, examples=10, steps=1, skipped=0, seconds=2.0, loss=0.5, metrics={})
    ... ])
    >>> history.last.loss, history.examples, history.last.examples_per_s
    (0.5, 10, 5.0)
    """

    epochs: list[Epoch] = field(default_factory=list)
    """The epochs, in order."""

    validations: list[EvaluatedWithin] = field(default_factory=list)
    """Validations within epochs, in order (`TrainerConfig.validate_every_steps`)."""

    time_shares: TimeShares = field(default_factory=TimeShares)
    """How the training threads spent their time, over all epochs."""

    was_stopped: bool = False
    """Whether a callback stopped training before its last epoch."""

    bottleneck: str = ""
    """The main bottleneck, and what to do about it."""

    @property
    def reading(self) -> ReaderStats | None:
        """Return the reading statistics over all epochs, or None if the data keeps no counts."""
        counted = [epoch.reading for epoch in self.epochs if epoch.reading is not None]
        return functools.reduce(operator.add, counted) if counted else None

    @property
    def last(self) -> Epoch:
        """Return the last epoch."""
        return self.epochs[-1]

    @property
    def examples(self) -> int:
        """Number of examples trained on in all epochs."""
        return sum(epoch.examples for epoch in self.epochs)

    @property
    def steps(self) -> int:
        """Number of batches trained on in all epochs."""
        return sum(epoch.steps for epoch in self.epochs)

    @property
    def seconds(self) -> float:
        """Total wall time of all epochs."""
        return sum(epoch.seconds for epoch in self.epochs)


def summary_table(history: History) -> Table:
    """Return a table with the share of time spent on each activity."""
    from rich.table import Table

    table = Table(title="where the time went", title_justify="left")
    table.add_column("")
    table.add_column("share", justify="right")
    table.add_column("seconds", justify="right")
    table.add_column("what")
    for name, share in history.time_shares.shares().items():
        if name == "other" and share < _WORTH_SHOWING:
            continue
        seconds = getattr(history.time_shares, name)
        table.add_row(name, f"{100 * share:.1f}%", f"{seconds:.1f}", _MEANING[name])
    return table


def summary_lines(history: History) -> list[str]:
    """Return lines about the examples trained on, the data read, and the bottleneck."""
    rate = history.examples / history.seconds if history.seconds > 0 else 0.0
    lines = [
        f"trained {history.examples:,} examples in {history.seconds:.1f} s ({rate:,.0f} per second)"
    ]
    skipped = sum(epoch.skipped for epoch in history.epochs)
    if skipped:
        lines.append(f"{skipped:,} batches were skipped because their loss was not finite")
    if history.reading is not None:
        lines.append(describe_reading(history.reading, history.seconds))
    return [*lines, f"bottleneck: {history.bottleneck}"]
