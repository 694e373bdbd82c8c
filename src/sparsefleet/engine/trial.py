"""A trial: runs a script in a given mode for a few seconds and writes the results to a file.

`sparsefleet plan --try` requests a trial through environment variables. The script needs no
changes; its `fit` stops early, and the script saves nothing.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sparsefleet.engine.events import Evaluated, Failed, PassBegan, PassEnded, PassView
from sparsefleet.errors import ConfigError, SparseFleetError
from sparsefleet.modes.mode_choice import mode_config
from sparsefleet.monitor.endpoint_file import write_atomically
from sparsefleet.store import RemoteStore

if TYPE_CHECKING:
    from sparsefleet.engine.training import Training
    from sparsefleet.modes import ModeConfig

__all__ = ["Trial", "chosen_mode", "process_trial"]

_MODE = "SPARSEFLEET_MODE"
_SECONDS = "SPARSEFLEET_TRIAL_SECONDS"
_DIRECTORY = "SPARSEFLEET_TRIAL_DIR"
_LOOK_S = 0.25
_log = logging.getLogger("sparsefleet.engine")


def chosen_mode(
    mode: str | ModeConfig | None, environ: Mapping[str, str] | None = None
) -> str | ModeConfig | None:
    """Return the mode chosen by the environment, or else `mode`.

    If `mode` is a config of the chosen mode, its settings are kept.

    >>> chosen_mode("sync", {"SPARSEFLEET_MODE": "geo"})
    'geo'
    >>> chosen_mode("sync", {})
    'sync'
    """
    name = (os.environ if environ is None else environ).get("SPARSEFLEET_MODE", "")
    if not name:
        return mode
    try:
        chosen = mode_config(name)
    except ConfigError as error:
        raise ConfigError(f"{_MODE}: {error}") from error
    return mode if mode is not None and type(mode_config(mode)) is type(chosen) else name


class Trial:
    """Stops all training runs of this process at the same time, and writes their results.

    seconds: counted from the start of the first pass. directory: receives `worker-N.json`.
    """

    def __init__(self, seconds: float, directory: str) -> None:
        self._seconds = seconds
        self._directory = directory
        self._begun: float | None = None

    def attach(self, training: Training[Any]) -> TrialRecord:
        """Record a training run, starting with its first event."""
        return TrialRecord(self, training, self._directory)

    def left_s(self) -> float:
        """Return the remaining seconds; the first call starts the clock."""
        if self._begun is None:
            self._begun = time.monotonic()
        return self._begun + self._seconds - time.monotonic()


class _ProcessTrial:
    """The trial of this process, read from its environment once."""

    def __init__(self) -> None:
        self.is_read = False
        self.trial: Trial | None = None


_process = _ProcessTrial()


def process_trial() -> Trial | None:
    """Return the trial that this process is part of, or None."""
    if not _process.is_read:
        seconds, directory = os.environ.get(_SECONDS, ""), os.environ.get(_DIRECTORY, "")
        if seconds or directory:
            try:
                number = float(seconds)
            except ValueError:
                number = math.nan
            if not 0 < number < math.inf or not directory:
                raise ConfigError(
                    f"{_SECONDS} must be a positive number and {_DIRECTORY} a directory, got "
                    f"{seconds!r} and {directory!r}: set both, or neither"
                )
            _process.trial = Trial(number, directory)
        _process.is_read = True
    return _process.trial


class TrialRecord:
    """Watches one training run: counts steps, stops it in time, and writes this worker's file."""

    def __init__(self, trial: Trial, training: Training[Any], directory: str) -> None:
        self._trial = trial
        self._training = training
        self._index = training.distributed.role.index
        self._path = os.path.join(directory, f"worker-{self._index}.json")
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._before = (0.0, 0, 0.0)
        self._points: list[tuple[float, int, float]] = []
        self._found: dict[str, Any] = {"metrics": {}, "evaluated": {}}
        self.is_passing = False
        """Whether a pass is in progress."""
        events = training.events
        events.subscribe(PassBegan, self._begin)
        events.subscribe(PassEnded, self._end)
        events.subscribe(Evaluated, lambda event: self.evaluated(event.figures))
        events.subscribe(Failed, self._failed)

    def evaluated(self, figures: Mapping[str, float]) -> None:
        """Record the metrics on held-out data."""
        self._found["evaluated"] = dict(figures)
        self._write()

    def refuse(self, what: str) -> bool:
        """Return whether to skip a save before or during `fit`.

        After `fit`, exit the script instead.

        A trial must not replace a checkpoint or an exported model.
        """
        _log.info("trial run: %s is skipped", what)
        if self.is_passing or not self._points:
            return True
        raise SystemExit(0)

    def _begin(self, event: PassBegan) -> None:
        self.is_passing = True
        self._ended.clear()
        if self._trial.left_s() <= 0:
            self._stop()
            return
        self._thread = threading.Thread(
            target=self._watch, args=(event.view,), name="sparsefleet-trial", daemon=True
        )
        self._thread.start()

    def _watch(self, view: PassView) -> None:
        while not self._ended.wait(min(_LOOK_S, max(self._trial.left_s(), 0.0))):
            self._look(view)
            if self._trial.left_s() <= 0:
                self._stop()
                return

    def _stop(self) -> None:
        self._training.request_stop()
        feed = self._training.progress.feed
        if feed is not None:
            feed.stop()

    def _look(self, view: PassView) -> None:
        counted = view.total()
        seconds, examples, loss = self._before
        with self._lock:
            self._points.append(
                (
                    seconds + time.monotonic() - view.begun,
                    examples + counted.examples,
                    loss + counted.loss_sum,
                )
            )

    def _end(self, event: PassEnded) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._look(event.view)
        self._before = self._points[-1]
        figures = self._training.metrics.figures
        if figures is not None and event.result.examples:
            self._found["metrics"] = dict(figures(event.view))
        feed = self._training.progress.feed
        if feed is not None and self._trial.left_s() <= 0:
            feed.close()
        self.is_passing = False
        self._write()

    def _failed(self, event: Failed) -> None:
        self._ended.set()
        self._found["error"] = f"{type(event.error).__name__}: {event.error}"
        self._write()

    def _write(self) -> None:
        model = self._training.distributed
        stats = model.mode.stats()
        moved = self._found.get("server_bytes", 0.0)
        if model.role.is_first_worker and isinstance(model.store, RemoteStore):
            with contextlib.suppress(SparseFleetError):
                moved = sum(
                    part.get("server.bytes_in", 0.0) + part.get("server.bytes_out", 0.0)
                    for part in model.store.stats()
                )
        self._found |= {
            "mode": model.mode.name,
            "workers": model.role.worker_num,
            "threads": model.threads,
            "steps": stats.steps,
            "staleness": stats.staleness_mean,
            "server_bytes": moved,
            "points": self._points,
        }
        write_atomically(self._path, json.dumps(self._found) + "\n")
