"""Looks at a running pass now and then, and tells the displays."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sparsefleet.errors import SparseFleetError
from sparsefleet.train.progress import ProgressDisplay, QuietDisplay, Snapshot
from sparsefleet.train.reading import ReadingWatch
from sparsefleet.train.scoring import Scorer
from sparsefleet.train.step_clock import StepClock, total
from sparsefleet.train.tensorboard_log import TensorBoardLog

if TYPE_CHECKING:
    from sparsefleet.fleet.distributed_model import DistributedModel
    from sparsefleet.modes import ModeStats

__all__ = ["PassProgress", "ProgressReporter"]


@dataclass(kw_only=True)
class PassProgress:
    """A pass that is under way, as seen from outside its threads."""

    epoch: int
    epochs: int
    num_batches: int | None
    clocks: list[StepClock]
    stats_before: ModeStats
    reading: ReadingWatch
    begun: float = field(default_factory=time.monotonic)


class ProgressReporter:
    """Shows a training through a display and in TensorBoard, from a thread of its own.

    Training threads pay nothing for it but the interpreter's time while it looks.
    """

    def __init__(
        self,
        distributed: DistributedModel,
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
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def begin_pass(self, progress: PassProgress) -> None:
        """Begins to look, if there is somebody to be told."""
        if isinstance(self._display, QuietDisplay) and self._tensorboard is None:
            return
        self._ended.clear()
        self._thread = threading.Thread(
            target=self._watch, args=(progress,), name="sparsefleet-progress", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Looks no more; nothing is shown after this. Idempotent."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def end_pass(self, progress: PassProgress) -> Snapshot:
        """Shows how the pass ended."""
        self.stop()
        self._count_rows()
        snapshot = self._look(progress)
        self._display.end_epoch(snapshot)
        if self._tensorboard is not None:
            self._tensorboard.write(snapshot, self._examples_before)
        self._examples_before += snapshot.examples
        return snapshot

    def show_validation(self, epoch: int, epochs: int, figures: dict[str, float]) -> None:
        """Shows what the validation data gave."""
        shown = "  ".join(f"{name} {value:.4f}" for name, value in figures.items())
        self._display.note(f"epoch {epoch}/{epochs}  validation  {shown}")
        if self._tensorboard is not None:
            self._tensorboard.write_validation(figures, self._examples_before)

    def _watch(self, progress: PassProgress) -> None:
        interval_s = min(self._display.interval_s, self._log_interval_s)
        logged = time.monotonic()
        while not self._ended.wait(interval_s):
            now = time.monotonic()
            to_log = now - logged >= self._log_interval_s
            if to_log:
                logged = now
                self._count_rows()
            snapshot = self._look(progress)
            self._display.show(snapshot)
            if to_log and self._tensorboard is not None:
                self._tensorboard.write(snapshot, self._examples_before)

    def _count_rows(self) -> None:
        """Asks the servers; only one worker does, and errors are left to those who train."""
        if not self._distributed.role.is_first_worker:
            return
        try:
            self._rows = count_rows(self._distributed.store.stats())
        except SparseFleetError:
            self._rows = None

    def _look(self, progress: PassProgress) -> Snapshot:
        counted = total(progress.clocks)
        figures = self._scorer.recent([s for clock in progress.clocks for s in list(clock.recent)])
        shown = figures.compute()
        loss = shown.pop("loss")
        shown.pop("log_loss", None)  # for two classes that is the loss once more
        reading = progress.reading.so_far()
        seconds = time.monotonic() - progress.begun
        return Snapshot(
            epoch=progress.epoch,
            epochs=progress.epochs,
            batches=counted.steps + counted.skipped,
            num_batches=progress.num_batches,
            examples=counted.examples,
            examples_per_s=counted.examples / seconds if seconds > 0 else 0.0,
            loss=loss,
            metrics=shown,
            rows=self._rows,
            skipped=counted.skipped,
            bad_lines=0 if reading is None else reading.bad_lines,
            **self._latencies(progress),
        )

    def _latencies(self, progress: PassProgress) -> dict[str, Any]:
        now, before = self._distributed.mode.stats(), progress.stats_before
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


def count_rows(stats: list[dict[str, float]]) -> int | None:
    """Rows of all sparse tables on all servers; None where there is no such table.

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
