"""The training of this worker as metrics, read when somebody asks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from sparsefleet.data import ReaderStats
from sparsefleet.engine.clock import StepClock, TimeShares, total
from sparsefleet.engine.events import (
    Evaluated,
    Events,
    Failed,
    FitBegan,
    PassBegan,
    PassEnded,
    PassView,
    Saved,
    SaveFailed,
    WorkerLost,
)
from sparsefleet.modes import ModeStats
from sparsefleet.modes.mode import STALENESS_BOUNDS
from sparsefleet.monitor import LOOKUPS, Sample, histogram_samples, sample, server_samples
from sparsefleet.store import RemoteStore

if TYPE_CHECKING:
    from sparsefleet.engine.bound_model import BoundModel

__all__ = ["WorkerMetrics"]

Figures = Callable[[PassView], Mapping[str, float]]
_FIGURES_S = 5.0  # metrics such as the AUC take milliseconds to compute: not with every scrape


class WorkerMetrics:
    """Follows the events of a training and reports it as metrics. Thread-safe.

    Training threads pay nothing for it: it reads the clocks that they keep anyway.
    """

    def __init__(self, distributed: BoundModel) -> None:
        self._distributed = distributed
        self._lock = threading.Lock()
        self._done = StepClock()
        """The sums of the passes that are over."""
        self._read = ReaderStats()
        self._view: PassView | None = None
        self._epoch = self._epochs = 0
        self._validation: Mapping[str, float] = {}
        self._saves: list[Saved] = []
        self._saved_at = 0.0
        self._failed_saves = self._lost = self._num_saves = 0
        self._figures_at = 0.0
        self._shown: Mapping[str, float] = {}
        self._seconds: dict[str, float] = {}
        self.figures: Figures | None = None
        """Computes the metrics of recent batches; set by the API that knows them."""

    def attach(self, events: Events) -> None:
        """Subscribe to what it reports."""
        events.subscribe(FitBegan, self._begin_fit)
        events.subscribe(PassBegan, self._begin_pass)
        events.subscribe(PassEnded, lambda event: self._end_pass(event.view))
        events.subscribe(Failed, lambda _: self._end_pass(self._view))
        events.subscribe(Evaluated, self._evaluated)
        events.subscribe(Saved, self._saved)
        events.subscribe(SaveFailed, self._save_failed)
        events.subscribe(WorkerLost, self._worker_lost)

    def _begin_fit(self, event: FitBegan) -> None:
        self._epochs = event.epochs

    def _begin_pass(self, event: PassBegan) -> None:
        with self._lock:
            self._view, self._epoch = event.view, event.view.epoch

    def _end_pass(self, view: PassView | None) -> None:
        with self._lock:
            if view is None or self._view is not view:
                return
            self._view = None
            self._done = total([self._done, view.total()])
            self._read += view.reading.so_far() or ReaderStats()

    def _evaluated(self, event: Evaluated) -> None:
        self._validation = dict(event.figures)

    def _saved(self, event: Saved) -> None:
        self._saves = [event]
        self._num_saves += 1
        self._saved_at = time.time()

    def _save_failed(self, event: SaveFailed) -> None:
        del event
        self._failed_saves += 1

    def _worker_lost(self, event: WorkerLost) -> None:
        del event
        self._lost += 1

    # -- reading ------------------------------------------------------------------------------

    def samples(self) -> Iterator[Sample]:
        """Yield the state of the training now."""
        with self._lock:
            view = self._view
            counted = self._done if view is None else total([self._done, view.total()])
            read = (
                self._read
                if view is None
                else self._read + (view.reading.so_far() or ReaderStats())
            )
        stats = self._distributed.mode.stats()
        yield sample("sparsefleet_worker_examples_total", counted.examples)
        yield sample("sparsefleet_worker_steps_total", counted.steps)
        yield sample("sparsefleet_worker_skipped_steps_total", counted.skipped)
        yield sample("sparsefleet_worker_loss_total", counted.loss_sum)
        yield sample("sparsefleet_worker_epoch", self._epoch)
        yield sample("sparsefleet_worker_epochs", self._epochs)
        yield sample("sparsefleet_worker_threads", self._distributed.threads)
        yield sample("sparsefleet_worker_lost_workers_total", self._lost)
        shares = TimeShares.of(counted, stats.wait_seconds)
        for activity, seconds in shares.seconds().items():
            # Clocks are read while they run, so that a difference of two may step back a little.
            seconds = self._seconds[activity] = max(self._seconds.get(activity, 0.0), seconds)
            yield sample("sparsefleet_worker_activity_seconds_total", seconds, activity=activity)
        yield sample("sparsefleet_checkpoint_pause_seconds_total", counted.save_s)
        yield from _mode_samples(stats)
        yield from _reader_samples(read)
        yield from self._save_samples()
        yield from LOOKUPS.samples()
        if not isinstance(self._distributed.store, RemoteStore):
            yield from server_samples(self._distributed.store.stats()[0])
        for name, value in self._recent_figures(view).items():
            yield sample("sparsefleet_worker_metric", value, metric=name)
        for name, value in self._validation.items():
            yield sample("sparsefleet_validation_metric", value, metric=name)

    def _recent_figures(self, view: PassView | None) -> Mapping[str, float]:
        now = time.monotonic()
        if view is not None and self.figures is not None and now - self._figures_at >= _FIGURES_S:
            self._figures_at = now
            self._shown = dict(self.figures(view))
        return self._shown

    def _save_samples(self) -> Iterator[Sample]:
        if not self._distributed.role.is_first_worker:
            return
        yield sample("sparsefleet_checkpoints_total", self._num_saves)
        yield sample("sparsefleet_checkpoint_failures_total", self._failed_saves)
        for saved in self._saves:
            yield sample("sparsefleet_checkpoint_seconds", saved.seconds)
            yield sample("sparsefleet_checkpoint_step", saved.step)
            yield sample("sparsefleet_checkpoint_time_seconds", self._saved_at)


def _mode_samples(stats: ModeStats) -> Iterator[Sample]:
    yield sample("sparsefleet_worker_pushes_total", stats.pushes)
    yield sample("sparsefleet_worker_merged_gradients_total", stats.merged_gradients)
    yield sample("sparsefleet_worker_pull_seconds_total", stats.pull_seconds)
    yield sample("sparsefleet_worker_push_seconds_total", stats.push_seconds)
    yield sample("sparsefleet_worker_queue_depth", stats.queued)
    yield sample("sparsefleet_worker_sent_bytes_total", stats.sent_bytes)
    counts = stats.staleness_counts
    if counts:
        below = [sum(counts[: i + 1]) for i in range(len(STALENESS_BOUNDS))]
        yield from histogram_samples(
            "sparsefleet_worker_staleness_steps",
            dict(zip(STALENESS_BOUNDS, below, strict=True)),
            sum(counts),
            stats.staleness_mean * stats.steps,
        )


def _reader_samples(read: ReaderStats) -> Iterator[Sample]:
    yield sample("sparsefleet_reader_lines_total", read.lines)
    yield sample("sparsefleet_reader_records_total", read.records)
    yield sample("sparsefleet_reader_bytes_total", read.bytes)
    yield sample("sparsefleet_reader_bad_lines_total", read.bad_lines)
    yield sample("sparsefleet_reader_threads", read.threads)
    yield sample("sparsefleet_reader_blocked_seconds_total", read.producers_blocked_s)
    yield sample("sparsefleet_reader_starved_seconds_total", read.consumers_blocked_s)
