"""The checkpoints of one training, written one after another in the background."""

from __future__ import annotations

import contextlib
import logging
import posixpath
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from sparsefleet.checkpoint import clean_up, rotate, step_name
from sparsefleet.errors import CheckpointError, SparseFleetError
from sparsefleet.fleet.model_checkpoint import ModelSave
from sparsefleet.store.checkpoint_path import absolute_path
from sparsefleet.store.server_calls import ServerCalls
from sparsefleet.store.store_save import Base
from sparsefleet.train.checkpoint_config import CheckpointConfig
from sparsefleet.train.worker_report import WorkerReport

if TYPE_CHECKING:
    from sparsefleet.fleet.distributed_model import DistributedModel

__all__ = ["CheckpointSeries"]

_log = logging.getLogger("sparsefleet.train")


class CheckpointSeries:
    """What the first worker does for all: opens the cuts, has them written, removes old ones.

    A save that fails is logged and leaves the checkpoints before it as they are; training goes
    on, and the next save is a full one. Not thread-safe.
    """

    def __init__(self, distributed: DistributedModel, config: CheckpointConfig) -> None:
        self._distributed = distributed
        self._config = config
        self._directory = absolute_path(config.directory)
        self._writer: threading.Thread | None = None
        self._known: dict[int, WorkerReport] = {}  # the last of each worker
        self._is_cleaned = False
        self._last_place: object = None  # that of the last save
        self._base: Base | None = None  # what a delta would be built on
        self._deltas = 0  # since the last full one
        self.error: Exception | None = None
        """Why the last save failed; None if it did not."""
        if distributed.role.is_first_worker:
            # Servers load what saving needs, so that the first save is as quick as the others.
            ServerCalls(distributed.store, "").ask_all("files_ready")

    def reports_of_all(self, present: Mapping[int, WorkerReport]) -> list[WorkerReport]:
        """By rank. Of a worker that is lost, what it said last: nobody has trained its data since.

        present: of those that are there, by rank; the first worker is.
        """
        first = present[0]
        unknown = replace(first, position=None, is_through=False, batches=0, random={})
        self._known.update(present)
        return [
            self._known.get(rank, unknown).moved_to(first)
            for rank in range(self._distributed.role.worker_num)
        ]

    def begin(self, reports: Sequence[WorkerReport]) -> str:
        """Opens the cuts and lets a thread write them; says what it did, for the log.

        All workers must have stopped, with everything applied.
        """
        if self.is_busy:
            return "skipped: the one before is still being written"
        self._join()
        step = sum(report.batches for report in reports)
        place = (step, [(report.fit, report.epoch) for report in reports])
        if place == self._last_place:
            return "skipped: nothing was trained since the last"
        path = f"{self._directory}/{step_name(step)}"
        base = self._base if self._deltas < self._config.deltas_between_fulls else None
        if (
            base is not None and base.path == path
        ):  # an epoch that ended with a save: the same rows, at another place
            base = None
        begun = time.monotonic()
        try:
            save = ModelSave(
                self._distributed,
                path,
                step=step,
                workers=[report.to_json() for report in reports],
                schedule_steps=max(report.schedule_steps for report in reports),
                base=base,
                track=self._config.deltas_between_fulls > 0,
                storage_options=self._config.storage_options,
                timeout_s=self._config.timeout_s,
            )
            save.open()
        except (SparseFleetError, OSError) as error:
            self._failed(path, error)
            return f"failed: {error}"
        pause_ms = 1e3 * (time.monotonic() - begun)
        self._last_place = place
        self._writer = threading.Thread(
            target=self._write,
            args=(save, path, base is None),
            name="sparsefleet-checkpoint",
            daemon=True,
        )
        self._writer.start()
        kind = "full" if base is None else "delta"
        return f"began: {path} ({kind}), cuts opened in {pause_ms:.1f} ms"

    @property
    def is_busy(self) -> bool:
        """Whether a save is being written."""
        return self._writer is not None and self._writer.is_alive()

    def wait(self) -> None:
        """Returns when the save under way is in force, or has failed."""
        self._join()

    def _join(self) -> None:
        if self._writer is not None:
            self._writer.join()  # ends: every call in it has a deadline
            self._writer = None

    def _write(self, save: ModelSave, path: str, is_full: bool) -> None:
        """In the background thread."""
        begun = time.monotonic()
        self._clean_up_once()
        try:
            written = save.write()
        except Exception as error:  # the thread's edge
            self._failed(path, error)
            return
        self._deltas = 0 if is_full else self._deltas + 1
        self._base = written
        self.error = None
        _log.info("checkpoint %s is in force, %.1f s", path, time.monotonic() - begun)
        with self._removing():
            rotate(
                self._directory,
                self._config.keep,
                self._config.storage_options,
                newest=posixpath.basename(path),
            )

    def _clean_up_once(self) -> None:
        """Before the first save, which may need the space that killed ones left behind."""
        if not self._is_cleaned:
            self._is_cleaned = True
            with self._removing():
                clean_up(self._directory, self._config.storage_options)

    @contextlib.contextmanager
    def _removing(self) -> Iterator[None]:
        """What cannot be removed costs space and nothing else."""
        try:
            yield
        except (SparseFleetError, OSError) as error:
            _log.warning("old checkpoints in %s could not be removed: %s", self._directory, error)

    def _failed(self, path: str, error: Exception) -> None:
        self.error = error
        self._base = None  # what the servers count as saved may not be
        self._deltas = 0
        self._last_place = None
        _log.error(
            "checkpoint %s failed, training goes on: %s: %s", path, type(error).__name__, error
        )

    def raise_last_error(self) -> None:
        """Raises CheckpointError if the last save failed."""
        if self.error is not None:
            raise CheckpointError(
                f"the last checkpoint in {self._directory} could not be written: {self.error}"
            ) from self.error
