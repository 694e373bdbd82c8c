"""The checkpoints of one training run, written in the background."""

from __future__ import annotations

import contextlib
import logging
import posixpath
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from sparsefleet.checkpoint import clean_up, rotate
from sparsefleet.checkpoint.names import absolute_path, step_name
from sparsefleet.checkpoint.series import SeriesOwner
from sparsefleet.engine.events import Events, Saved, SaveFailed
from sparsefleet.engine.model_checkpoint import ModelSave
from sparsefleet.engine.save_schedule import CheckpointConfig
from sparsefleet.engine.training_progress import WorkerReport
from sparsefleet.errors import CheckpointError, SparseFleetError
from sparsefleet.store.store_save import Base, ServerCalls

if TYPE_CHECKING:
    from sparsefleet.engine.bound_model import BoundModel

__all__ = ["CheckpointSeries"]

_log = logging.getLogger("sparsefleet.engine")


class CheckpointSeries:
    """Takes and writes checkpoints and removes old ones, in the first worker for the whole job.

    A failed save is logged and does not affect earlier checkpoints; training continues, and the
    next save is a full checkpoint. Not thread-safe.
    """

    def __init__(
        self,
        distributed: BoundModel,
        config: CheckpointConfig,
        events: Events,
        owner: SeriesOwner | None = None,
    ) -> None:
        """Create a series. owner: identifies this training run, if it has claimed the directory."""
        self._owner = owner
        self._events = events
        self._distributed = distributed
        self._config = config
        self._directory = absolute_path(config.directory)
        self._writer: threading.Thread | None = None
        self._known: dict[int, WorkerReport] = {}  # the last report of each worker
        self._is_cleaned = False
        self._last_position: object = None  # time of the last save
        self._base: Base | None = None  # the base for the next delta
        self._deltas = 0  # since the last full one
        self.error: Exception | None = None
        """The error from the last save; None if it succeeded."""
        if distributed.role.is_first_worker:
            # Servers load the code for saving now, which makes the first save as quick as later
            # ones.
            ServerCalls(distributed.store, "").ask_all("files_ready")

    def reports_of_all(self, present: Mapping[int, WorkerReport]) -> list[WorkerReport]:
        """Return the reports of all workers by rank; a lost worker's last report is still valid.

        present: reports of the workers still present, by rank.
        """
        first = present[min(present)]
        unknown = replace(first, position=None, is_through=False, batches=0, random={})
        self._known.update(present)
        return [
            self._known.get(rank, unknown).moved_to(first)
            for rank in range(self._distributed.role.worker_num)
        ]

    def begin(self, reports: Sequence[WorkerReport]) -> str:
        """Take a snapshot and start a background thread to write it; return a summary for the log.

        All workers must be paused, and all their updates applied.
        """
        if self.is_busy:
            return "skipped: the previous one is still being written"
        self._join()
        if self._owner is None:  # the worker that claimed the directory is lost
            self._owner = SeriesOwner.of(self._directory, self._config.storage_options)
        step = sum(report.batches for report in reports)
        position = (step, [(report.fit, report.epoch, report.is_ended) for report in reports])
        if position == self._last_position:
            return "skipped: nothing was trained since the last save"
        path = f"{self._directory}/{step_name(step)}"
        base = self._base if self._deltas < self._config.deltas_between_fulls else None
        if base is not None and base.path == path:  # an epoch ended right after a save
            base = None
        begun = time.monotonic()
        try:
            save = ModelSave.of_workers(
                self._distributed,
                path,
                reports,
                base=base,
                track=self._config.deltas_between_fulls > 0,
                storage_options=self._config.storage_options,
                timeout_s=self._config.timeout_s,
                generation=None if self._owner is None else self._owner.generation,
            )
            save.open()
        except (SparseFleetError, OSError) as error:
            self._failed(path, error)
            return f"failed: {error}"
        pause_ms = 1e3 * (time.monotonic() - begun)
        self._last_position = position
        self._writer = threading.Thread(
            target=self._write,
            args=(save, path, step, base is None),
            name="sparsefleet-checkpoint",
            daemon=True,
        )
        self._writer.start()
        kind = "full" if base is None else "delta"
        return f"started: {path} ({kind}), snapshot taken in {pause_ms:.1f} ms"

    @property
    def is_busy(self) -> bool:
        """Return whether a save is being written."""
        return self._writer is not None and self._writer.is_alive()

    def wait(self) -> None:
        """Block until the current save is committed or has failed."""
        self._join()

    def _join(self) -> None:
        if self._writer is not None:
            self._writer.join()  # the thread will finish, since every call in it has a deadline
            self._writer = None

    def _write(self, save: ModelSave, path: str, step: int, is_full: bool) -> None:
        """Write the checkpoint; runs in the background thread."""
        begun = time.monotonic()
        self._clean_up_once()
        try:
            if self._owner is not None:
                self._owner.require_owns(self._directory, self._config.storage_options)
            written = save.write()
        except Exception as error:  # thread boundary
            save.abort()
            self._failed(path, error)
            return
        self._deltas = 0 if is_full else self._deltas + 1
        self._base = written
        self.error = None
        seconds = time.monotonic() - begun
        _log.info("checkpoint %s is committed, %.1f s", path, seconds)
        self._events.post(Saved(path, step, is_full, seconds))
        with self._removing():
            rotate(
                self._directory,
                self._config.keep,
                self._config.storage_options,
                newest=posixpath.basename(path),
            )

    def _clean_up_once(self) -> None:
        """Remove the remains of interrupted saves, since the first save may need the space."""
        if not self._is_cleaned:
            self._is_cleaned = True
            with self._removing():
                clean_up(self._directory, self._config.storage_options)

    @contextlib.contextmanager
    def _removing(self) -> Iterator[None]:
        """Log errors from removing old files instead of raising them.

        Files that cannot be removed only take up space.
        """
        try:
            yield
        except (SparseFleetError, OSError) as error:
            _log.warning("old checkpoints in %s could not be removed: %s", self._directory, error)

    def _failed(self, path: str, error: Exception) -> None:
        self.error = error
        self._base = None  # servers may consider unsaved rows saved
        self._deltas = 0
        self._last_position = None
        _log.error(
            "checkpoint %s failed, training continues: %s: %s", path, type(error).__name__, error
        )
        self._events.post(SaveFailed(path, error))

    def raise_last_error(self) -> None:
        """Raise CheckpointError if the last save failed."""
        if self.error is not None:
            raise CheckpointError(
                f"the last checkpoint in {self._directory} could not be written: {self.error}"
            ) from self.error
