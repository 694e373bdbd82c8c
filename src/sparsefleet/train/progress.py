"""Displays training progress on a terminal or as plain lines, and writes it to TensorBoard."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sparsefleet.engine.events import (
    Evaluated,
    EvaluatedWithin,
    Events,
    Failed,
    PassBegan,
    PassEnded,
    PassView,
)
from sparsefleet.errors import ConfigError, SparseFleetError
from sparsefleet.fleet import RoleInfo
from sparsefleet.train.scoring import Scorer

if TYPE_CHECKING:
    from rich.console import RenderableType

    from sparsefleet.engine.bound_model import BoundModel

__all__ = [
    "LiveDisplay",
    "PlainDisplay",
    "ProgressDisplay",
    "ProgressReporter",
    "Snapshot",
    "TensorBoardLog",
    "open_tensorboard",
]

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


class ProgressDisplay:
    """Shows training progress; must be closed at the end."""

    def __init__(self, interval_s: float) -> None:
        self.interval_s = interval_s
        """Seconds between updates."""

    def show(self, snapshot: Snapshot) -> None:
        """Show the current state of training."""

    def end_epoch(self, snapshot: Snapshot) -> None:
        """Show the state at the end of a pass and leave it visible."""
        self.note(str(snapshot))

    def note(self, text: str) -> None:
        """Print a permanent line."""

    def table(self, make: MakeTable) -> None:
        """Print a permanent table."""

    def close(self) -> None:
        """Restore the terminal. Idempotent."""


class QuietDisplay(ProgressDisplay):
    """Shows nothing."""


class PlainDisplay(ProgressDisplay):
    """Prints a line every `interval_s`, for logs and pipes."""

    def show(self, snapshot: Snapshot) -> None:
        self.note(str(snapshot))

    def note(self, text: str) -> None:
        print(text, flush=True)

    def table(self, make: MakeTable) -> None:
        from rich.console import Console

        Console(file=sys.stdout, width=100, color_system=None).print(make())

    def close(self) -> None:
        sys.stdout.flush()


class LiveDisplay(ProgressDisplay):
    """Updates one line with a progress bar in place; finished epochs stay visible above it."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        super().__init__(interval_s=1.0)
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


class ProgressReporter:
    """Reports training progress on a display and in TensorBoard, from its own thread.

    The reporter subscribes to the engine's events. Polling slows training threads down only while
    it holds the interpreter lock.
    """

    def __init__(
        self,
        distributed: BoundModel,
        scorer: Scorer,
        display: ProgressDisplay,
        *,
        log_interval_s: float,
        tensorboard: TensorBoardLog | None = None,
    ) -> None:
        self._distributed = distributed
        self._scorer = scorer
        self._display = display
        self._log_interval_s = log_interval_s
        self._tensorboard = tensorboard
        self._rows: int | None = None
        self._examples_before = 0
        self._view: PassView | None = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self.last: dict[int, Snapshot] = {}
        """The final state of each epoch."""

    def attach(self, events: Events) -> None:
        """Subscribe to the events that the reporter shows."""
        events.subscribe(PassBegan, self._begin_pass)
        events.subscribe(PassEnded, self._end_pass)
        events.subscribe(Evaluated, self._show_validation)
        events.subscribe(EvaluatedWithin, self._show_validation_within)
        events.subscribe(Failed, lambda _: self.stop())

    def _begin_pass(self, event: PassBegan) -> None:
        """Start polling the pass, if there is a display or a TensorBoard log."""
        self._view = event.view
        if isinstance(self._display, QuietDisplay) and self._tensorboard is None:
            return
        self._ended.clear()
        self._thread = threading.Thread(
            target=self._watch, args=(event.view,), name="sparsefleet-progress", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop polling; nothing is shown after this. Idempotent."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _end_pass(self, event: PassEnded) -> None:
        """Show the final state of the pass."""
        self.stop()
        self._count_rows()
        snapshot = self.last[event.result.epoch] = self._look(event.view)
        self._display.end_epoch(snapshot)
        if self._tensorboard is not None:
            self._tensorboard.write(snapshot, self._examples_before)
        self._examples_before += snapshot.examples

    def _show_validation(self, event: Evaluated) -> None:
        """Show the metrics on the validation data."""
        self._display.note(f"epoch {event.epoch}/{event.epochs}  {_validation(event.figures)}")
        if self._tensorboard is not None:
            self._tensorboard.write_validation(event.figures, self._examples_before)

    def _show_validation_within(self, event: EvaluatedWithin) -> None:
        shown = _validation(event.figures)
        self._display.note(f"epoch {event.epoch}/{event.epochs}  step {event.step}  {shown}")
        if self._tensorboard is not None and self._view is not None:
            examples = self._examples_before + self._view.total().examples
            self._tensorboard.write_validation(event.figures, examples)

    def _watch(self, view: PassView) -> None:
        interval_s = min(self._display.interval_s, self._log_interval_s)
        logged = time.monotonic()
        while not self._ended.wait(interval_s):
            now = time.monotonic()
            to_log = now - logged >= self._log_interval_s
            if to_log:
                logged = now
                self._count_rows()
            snapshot = self._look(view)
            self._display.show(snapshot)
            if to_log and self._tensorboard is not None:
                self._tensorboard.write(snapshot, self._examples_before)

    def _count_rows(self) -> None:
        """Ask the servers for their row counts, from one worker only; errors are ignored."""
        if not self._distributed.role.is_first_worker:
            return
        try:
            self._rows = count_rows(self._distributed.store.stats())
        except SparseFleetError:
            self._rows = None

    def figures(self, view: PassView) -> dict[str, float]:
        """Return "loss" and the metrics on recent batches."""
        recent = [outcome for clock in view.clocks for outcome in list(clock.recent)]
        return self._scorer.recent(recent).compute()

    def _look(self, view: PassView) -> Snapshot:
        counted = view.total()
        figures = self.figures(view)
        shown = {name: figures[name] for name in self._scorer.train_names if name in figures}
        loss = shown.pop("loss")
        reading = view.reading.so_far()
        seconds = time.monotonic() - view.begun
        return Snapshot(
            epoch=view.epoch,
            epochs=view.epochs,
            batches=counted.steps + counted.skipped,
            num_batches=view.num_batches,
            examples=counted.examples,
            examples_per_s=counted.examples / seconds if seconds > 0 else 0.0,
            loss=loss,
            metrics=shown,
            rows=self._rows,
            skipped=counted.skipped,
            bad_lines=0 if reading is None else reading.bad_lines,
            **self._latencies(view),
        )

    def _latencies(self, view: PassView) -> dict[str, Any]:
        now, before = self._distributed.mode.stats(), view.stats_before
        steps, pushes = now.steps - before.steps, now.pushes - before.pushes
        if steps == 0 or self._distributed.mode.name == "local":
            return {}
        pull_s = now.pull_seconds - before.pull_seconds
        push_s = now.push_seconds - before.push_seconds
        shown = {
            "pull_ms": 1e3 * pull_s / steps,
            "push_ms": 1e3 * push_s / pushes if pushes else None,
            "staleness": now.staleness_mean,
        }
        if now.collectives:
            shown["sent_mb"] = (now.sent_bytes - before.sent_bytes) / steps / 2**20
        return shown


def _validation(figures: Mapping[str, float]) -> str:
    return "  ".join(["validation", *(f"{name} {value:.4f}" for name, value in figures.items())])


def count_rows(stats: list[dict[str, float]]) -> int | None:
    """Return the number of rows in all sparse tables on all servers, or None if there are none.

    >>> count_rows([{"table.ads.rows": 2.0, "requests": 9.0}, {"table.ads.rows": 3.0}])
    5
    """
    rows = [
        value
        for server in stats
        for name, value in server.items()
        if name.startswith("table.") and name.endswith(".rows")
    ]
    return int(sum(rows)) if rows else None


def open_tensorboard(
    directory: str | os.PathLike[str] | None, role: RoleInfo
) -> TensorBoardLog | None:
    """In the first worker, open a log in the directory.

    Return None on other workers, or if there is no directory.
    """
    if directory is None or not role.is_first_worker:
        return None
    return TensorBoardLog(directory)


class TensorBoardLog:
    """Writes scalars to a directory, with the number of examples as the x-axis."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigError(
                f"TrainerConfig.tensorboard is {os.fspath(directory)!r}, which requires the "
                f"tensorboard package; run `pip install sparsefleet[tensorboard]`: {error}"
            ) from error
        self._writer: Any = SummaryWriter(os.fspath(directory))

    def write(self, snapshot: Snapshot, examples_before: int) -> None:
        """Write training metrics."""
        values: dict[str, float | None] = {
            "train/loss": snapshot.loss,
            **{f"train/{name}": value for name, value in snapshot.metrics.items()},
            "speed/examples_per_s": snapshot.examples_per_s,
            "speed/pull_ms": snapshot.pull_ms,
            "speed/push_ms": snapshot.push_ms,
            "fleet/rows": snapshot.rows,
            "fleet/staleness": snapshot.staleness,
            "fleet/sent_mb": snapshot.sent_mb,
            "data/bad_lines": snapshot.bad_lines or None,
        }
        self._write(values, examples_before + snapshot.examples)

    def write_validation(self, figures: Mapping[str, float], examples: int) -> None:
        """Write validation metrics."""
        self._write({f"validation/{name}": value for name, value in figures.items()}, examples)

    def _write(self, values: Mapping[str, float | None], at: int) -> None:
        for name, value in values.items():
            if value is not None and not math.isnan(value):
                self._writer.add_scalar(name, value, at)

    def close(self) -> None:
        self._writer.close()
