"""Displays training progress as a live line on a terminal, or as plain lines elsewhere."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["LiveDisplay", "PlainDisplay", "ProgressDisplay", "QuietDisplay", "Snapshot"]

MakeTable = Callable[[], "RenderableType"]
"""Creates a rich table; called only if the table is shown, since rich is slow to load."""

_ACRONYMS = {"auc": "AUC", "gauc": "GAUC"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """The state of training at one point in time.

    >>> print(Snapshot(epoch=1, epochs=2, batches=50, num_batches=200, examples=50_000,
    ...                examples_per_s=34100.2, loss=0.55882, metrics={"auc": 0.7425}, rows=73944))
    epoch 1/2  25%  34,100 examples/s  loss 0.5588  AUC 0.7425  73,944 rows
    """

    epoch: int
    epochs: int
    batches: int
    """Number of batches in this pass so far."""
    num_batches: int | None = None
    """Number of batches in a whole pass, if known."""
    examples: int = 0
    """Number of examples in this pass so far."""
    examples_per_s: float = 0.0
    loss: float = math.nan
    """Mean loss over the last batches, the same batches that the metrics cover."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    rows: int | None = None
    """Number of rows in all tables."""
    pull_ms: float | None = None
    """Mean time of a pull."""
    push_ms: float | None = None
    """Mean time of a push."""
    staleness: float | None = None
    """Average number of steps by which the parameters used in a step are out of date."""
    sent_mb: float | None = None
    """Megabytes that this worker sends to other workers per step; only in mode "collective"."""
    skipped: int = 0
    """Number of batches skipped because of their loss."""
    bad_lines: int = 0
    """Number of malformed input lines that were skipped."""

    @property
    def numbers(self) -> str:
        """The snapshot as text, without the epoch and the fraction completed."""
        parts = [f"{self.examples_per_s:,.0f} examples/s"]
        if self.examples or not math.isnan(self.loss):  # otherwise no loss is known yet
            parts.append(f"loss {self.loss:.4f}")
        parts += [f"{_shown(name)} {value:.4f}" for name, value in self.metrics.items()]
        if self.rows is not None:
            parts.append(f"{self.rows:,} rows")
        if self.pull_ms is not None:
            parts.append(f"pull {self.pull_ms:.1f} ms")
        if self.push_ms is not None:
            parts.append(f"push {self.push_ms:.1f} ms")
        if self.staleness is not None:
            parts.append(f"staleness {self.staleness:.1f}")
        if self.sent_mb is not None:
            parts.append(f"sent {self.sent_mb:.2f} MB per step")
        if self.skipped:
            parts.append(f"{self.skipped:,} skipped")
        if self.bad_lines:
            parts.append(f"{self.bad_lines:,} bad lines")
        return "  ".join(parts)

    def __str__(self) -> str:
        done = f"batch {self.batches:,}"
        if self.num_batches:
            done = f"{100 * self.batches // self.num_batches}%"
        return f"epoch {self.epoch}/{self.epochs}  {done}  {self.numbers}"


def _shown(name: str) -> str:
    return _ACRONYMS.get(name, name)


class ProgressDisplay(Protocol):
    """Shows training progress; must be closed at the end."""

    interval_s: float
    """Seconds between updates."""

    def show(self, snapshot: Snapshot) -> None:
        """Show the current state of training."""

    def end_epoch(self, snapshot: Snapshot) -> None:
        """Show the state at the end of a pass and leave it visible."""

    def note(self, text: str) -> None:
        """Print a permanent line."""

    def table(self, make: MakeTable) -> None:
        """Print a permanent table."""

    def close(self) -> None:
        """Restore the terminal. Idempotent."""


class QuietDisplay:
    """Shows nothing."""

    def __init__(self, interval_s: float) -> None:
        self.interval_s = interval_s

    def show(self, snapshot: Snapshot) -> None:
        del snapshot

    def end_epoch(self, snapshot: Snapshot) -> None:
        del snapshot

    def note(self, text: str) -> None:
        del text

    def table(self, make: MakeTable) -> None:
        del make

    def close(self) -> None:
        pass


class PlainDisplay:
    """Prints a line every `interval_s`, for logs and pipes."""

    def __init__(self, interval_s: float) -> None:
        self.interval_s = interval_s

    def show(self, snapshot: Snapshot) -> None:
        self.note(str(snapshot))

    def end_epoch(self, snapshot: Snapshot) -> None:
        self.note(str(snapshot))

    def note(self, text: str) -> None:
        print(text, flush=True)

    def table(self, make: MakeTable) -> None:
        from rich.console import Console

        Console(file=sys.stdout, width=100, color_system=None).print(make())

    def close(self) -> None:
        sys.stdout.flush()


class LiveDisplay:
    """Updates one line with a progress bar in place; finished epochs stay visible above it."""

    interval_s = 1.0

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._console = Console()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TimeElapsedColumn(),
            TextColumn("{task.fields[numbers]}", markup=False),
            console=self._console,
            auto_refresh=False,
            transient=True,
        )
        self._task = self._progress.add_task("starting", total=None, numbers="")
        self._epoch = 0
        self._progress.start()

    def show(self, snapshot: Snapshot) -> None:
        if snapshot.epoch != self._epoch:
            self._epoch = snapshot.epoch
            self._progress.reset(self._task, total=snapshot.num_batches)
        self._progress.update(
            self._task,
            description=f"epoch {snapshot.epoch}/{snapshot.epochs}",
            completed=snapshot.batches,
            numbers=snapshot.numbers,
            refresh=True,
        )

    def end_epoch(self, snapshot: Snapshot) -> None:
        self.note(str(snapshot))

    def note(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)

    def table(self, make: MakeTable) -> None:
        self._console.print(make())

    def close(self) -> None:
        self._progress.stop()


def make_display(*, quiet: bool, log_interval_s: float) -> ProgressDisplay:
    """Return a live display on a terminal, or a display with plain lines elsewhere."""
    if quiet:
        return QuietDisplay(log_interval_s)
    return LiveDisplay() if sys.stdout.isatty() else PlainDisplay(log_interval_s)
