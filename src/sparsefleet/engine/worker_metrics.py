"""Metrics about this worker's training, computed on request."""

from __future__ import annotations

import math
import threading
import time
import weakref
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
from sparsefleet.monitor import (
    LOOKUPS,
    PROCESS,
    Sample,
    histogram_samples,
    report_metrics_if_asked,
    sample,
    server_samples,
)
from sparsefleet.store import RemoteStore

if TYPE_CHECKING:
    from sparsefleet.engine.bound_model import BoundModel

__all__ = ["WORKER", "WorkerMetrics"]

Figures = Callable[[PassView], Mapping[str, float]]
_FIGURES_S = 5.0  # metrics like AUC take milliseconds to compute, too long for every scrape


class WorkerMetrics:
    """Metrics about training in this process, for any kind of loop; see `WORKER`. Thread-safe.

    The engine's loop is observed through its events at no extra cost, by reading the existing
    clocks of its threads. The steps of a custom loop have separate clocks.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._models: list[weakref.ref[BoundModel]] = []
        self._remove: Callable[[], None] | None = None
        self._done = StepClock()
        """The sums over finished passes."""
        self._own: dict[int, StepClock] = {}
        """A clock per thread for the steps of a custom loop."""
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
        """Computes metrics on recent batches; set by the API that knows them."""

    def serve(self, model: BoundModel | None) -> None:
        """Serve metrics if the environment enables it; include those of `model` until `release`."""
        if model is None and self._remove is not None:
            return
        is_seen = report_metrics_if_asked("worker", 0 if model is None else model.role.index)
        with self._lock:
            if model is not None and self._started_model() is not model:
                self._models = [each for each in self._models if each() not in (None, model)]
                self._models.append(weakref.ref(model))
                self._figures_at, self._shown = 0.0, {}  # they belong to a different run
            if self._remove is None:
                self._remove = PROCESS.add(self.samples) if is_seen else _nothing

    def release(self, model: BoundModel) -> None:
        """Stop reporting the metrics of a model that is being closed."""
        with self._lock:
            if self._started_model() is model:
                self.figures = None  # they belong to the model's run
            self._models = [each for each in self._models if each() not in (None, model)]

    def _started_model(self) -> BoundModel | None:
        """Return the most recent model passed to `serve` that has started."""
        models = (each() for each in reversed(self._models))
        return next((each for each in models if each is not None and each.is_started), None)

    def own_clock(self) -> StepClock:
        """Return the clock for steps that the calling thread takes outside of a pass."""
        thread = threading.get_ident()
        clock = self._own.get(thread)
        if clock is None:
            with self._lock:
                clock = self._own[thread] = StepClock()
        return clock

    def attach(self, events: Events) -> None:
        """Subscribe to the events that the metrics count."""
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
            ended = view.total()
            if not math.isfinite(ended.loss_sum):
                ended.loss_sum = 0.0  # otherwise the losses of all later runs would be NaN too
            self._done = total([self._done, ended])
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

    @property
    def steps(self) -> int:
        """Return the number of mini-batches that this process has trained on."""
        with self._lock:
            return self._counted().steps

    def _counted(self) -> StepClock:
        clocks = [self._done, *self._own.values()]
        return total(clocks if self._view is None else [*clocks, self._view.total()])

    def samples(self) -> Iterator[Sample]:
        """Yield the current values of all metrics."""
        with self._lock:
            view = self._view
            counted = self._counted()
            model = self._started_model()
            read = (
                self._read
                if view is None
                else self._read + (view.reading.so_far() or ReaderStats())
            )
        stats = ModeStats() if model is None else model.mode.stats()
        yield sample("sparsefleet_worker_examples_total", counted.examples)
        yield sample("sparsefleet_worker_steps_total", counted.steps)
        yield sample("sparsefleet_worker_skipped_steps_total", counted.skipped)
        if counted.loss_sum or not self._own:  # a custom loop may not report its losses
            yield sample("sparsefleet_worker_loss_total", counted.loss_sum)
        yield sample("sparsefleet_worker_epoch", self._epoch)
        yield sample("sparsefleet_worker_epochs", self._epochs)
        yield sample("sparsefleet_worker_threads", 1 if model is None else model.threads)
        yield sample("sparsefleet_worker_lost_workers_total", self._lost)
        shares = TimeShares.of(counted, stats.wait_seconds)
        for activity, seconds in shares.seconds().items():
            # Clocks are read while they run, so the difference between two readings may decrease
            # slightly.
            seconds = self._seconds[activity] = max(self._seconds.get(activity, 0.0), seconds)
            yield sample("sparsefleet_worker_activity_seconds_total", seconds, activity=activity)
        yield sample("sparsefleet_checkpoint_pause_seconds_total", counted.save_s)
        yield from _mode_samples(stats)
        yield from _reader_samples(read)
        if model is None or model.role.is_first_worker:
            yield from self._save_samples()
        yield from LOOKUPS.samples()
        if model is not None and not isinstance(model.store, RemoteStore):
            yield from server_samples(model.store.stats()[0])
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


def _nothing() -> None:
    """Do nothing, since this process does not serve metrics."""


WORKER = WorkerMetrics()
"""The metrics about training in this process."""
