"""Watches a running pass and updates the displays and TensorBoard."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Mapping
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
from sparsefleet.train.progress import ProgressDisplay, QuietDisplay, Snapshot
from sparsefleet.train.scoring import Scorer

if TYPE_CHECKING:
    from sparsefleet.engine.bound_model import BoundModel

__all__ = ["ProgressReporter", "TensorBoardLog", "open_tensorboard"]


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
        shown = self.figures(view)
        loss = shown.pop("loss")
        shown.pop("log_loss", None)  # for two classes it repeats the loss
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
