"""Tracks a worker's position in a training run, saves it in checkpoints, and resumes from it."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from sparsefleet.checkpoint import Checkpoint, latest, list_checkpoints
from sparsefleet.checkpoint.names import absolute_path
from sparsefleet.engine.batch_source import BatchFeed, DataPosition, PassStart
from sparsefleet.engine.save_schedule import CheckpointConfig
from sparsefleet.engine.series_claim import require_own_series
from sparsefleet.errors import (
    CheckpointError,
    CheckpointMissingError,
    ConfigError,
    CorruptFileError,
    PeerLostError,
)

if TYPE_CHECKING:
    from sparsefleet.checkpoint.series import SeriesOwner
    from sparsefleet.engine.bound_model import BoundModel
    from sparsefleet.engine.succession import TakenOver

__all__ = [
    "Resumed",
    "TrainingProgress",
    "WorkerReport",
    "check_resume",
    "resume_training",
]
_log = logging.getLogger("sparsefleet.engine")
Resume = str | os.PathLike[str] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerReport:
    """A worker's position in a training run, complete enough to resume as if uninterrupted.

    >>> report = WorkerReport(fit=1, epoch=2, position=DataPosition(batches=7))
    >>> WorkerReport.from_json(report.to_json()) == report
    True
    """

    fit: int
    """Number of `fit` calls started."""

    epoch: int
    """Number of epochs finished in the last `fit`."""

    position: DataPosition | None = None
    """Position in the current epoch; None between epochs."""

    is_through: bool = False
    """Whether this worker has no more data in the current epoch while others are still training."""

    is_ended: bool = False
    """Whether the last `fit` was stopped early and does not continue with further epochs."""

    batches: int = 0
    """Number of batches trained on since the run started, in this process or earlier ones."""

    schedule_steps: int = 0
    """Number of learning-rate schedule steps, as known to this worker."""

    store_step: int = 0
    """The sequence number of the worker's next push."""

    random: Mapping[str, Any] = field(default_factory=dict)
    """The state of the random generators in the worker's process."""

    def at_end_of_epoch(self) -> WorkerReport:
        """Return this report as it will be once the epoch has ended for all workers."""
        return replace(self, epoch=self.epoch + 1, position=None, is_through=False)

    def moved_to(self, other: WorkerReport) -> WorkerReport:
        """Return this report moved to the epoch of another worker's report.

        If this report was in a different epoch, it is moved to the epoch's first batch.
        """
        if (self.fit, self.epoch) == (other.fit, other.epoch):
            return self
        return replace(self, fit=other.fit, epoch=other.epoch, position=None, is_through=False)

    def to_json(self) -> dict[str, Any]:
        return {
            "fit": self.fit,
            "epoch": self.epoch,
            "position": None if self.position is None else self.position.to_json(),
            "is_through": self.is_through,
            "is_ended": self.is_ended,
            "batches": self.batches,
            "schedule_steps": self.schedule_steps,
            "store_step": self.store_step,
            "random": dict(self.random),
        }

    @staticmethod
    def from_json(found: Mapping[str, Any]) -> WorkerReport:
        """Parse the result of `to_json`."""
        try:
            position = found["position"]
            return WorkerReport(
                fit=int(found["fit"]),
                epoch=int(found["epoch"]),
                position=None if position is None else DataPosition.from_json(position),
                is_through=bool(found["is_through"]),
                is_ended=bool(found.get("is_ended", False)),
                batches=int(found["batches"]),
                schedule_steps=int(found["schedule_steps"]),
                store_step=int(found["store_step"]),
                random=dict(found["random"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"the checkpoint has no valid worker positions, found {found!r:.200}"
            ) from error


@dataclass(frozen=True, kw_only=True, slots=True)
class Resumed:
    """The point in a training run at which this worker resumes."""

    fit: int
    """The call to `fit` during which the checkpoint was taken."""

    epoch: int
    """Number of epochs finished in that call."""

    is_ended: bool
    """Whether that call was stopped early."""

    start: PassStart | None
    """Position in the next epoch; None means its first batch."""

    batches: int
    """Number of batches already trained on; the sum over all workers is the saved total."""

    store_step: int
    random: Mapping[str, Any] | None

    reports: Sequence[WorkerReport]
    """Reports from all workers of the earlier run."""

    path: str = ""
    """The path of the checkpoint."""

    @staticmethod
    def of(
        reports: Sequence[WorkerReport], rank: int, worker_num: int, *, path: str = ""
    ) -> Resumed:
        """Return where worker `rank` resumes, given the reports of all workers of the earlier run.

        If the number of workers has changed, the worker's data resumes from the positions of all
        earlier workers.
        """
        # A lost worker does not know that the others stopped early.
        is_ended = any(report.is_ended for report in reports)
        if len(reports) == worker_num:
            own = reports[rank]
            return Resumed(
                fit=own.fit,
                epoch=own.epoch,
                is_ended=is_ended,
                start=_own_start(own, reports),
                batches=own.batches,
                store_step=own.store_step,
                random=own.random or None,  # empty for a worker that was lost before the first save
                reports=reports,
                path=path,
            )
        return Resumed(
            fit=max(report.fit for report in reports),
            epoch=max(report.epoch for report in reports),
            is_ended=is_ended,
            start=_start(reports),
            batches=sum(report.batches for report in reports) if rank == 0 else 0,
            store_step=max(report.store_step for report in reports),
            random=None,
            reports=reports,
            path=path,
        )


class TrainingProgress:
    """Counts calls to `fit`, epochs and batches, continuing from a checkpoint if there is one.

    A restarted script repeats its calls to `fit`: calls that had finished before the checkpoint are
    skipped, and the call during which the checkpoint was taken resumes.
    """

    def __init__(self) -> None:
        self.fit = 0
        """Number of `fit` calls started."""
        self.epoch = 0
        """Number of epochs finished in the last `fit`."""
        self.feed: BatchFeed | None = None
        """The current pass."""
        self._batches = 0
        self._is_ended = False
        self._resumed: Resumed | None = None
        self.resumed_from: str | None = None
        """The path of the checkpoint from which the run continues."""
        self.owner: SeriesOwner | None = None
        """The claim of this run on its checkpoint directory, once it owns the directory."""
        self.owned: str | None = None
        """The claimed checkpoint directory."""
        self.taken: TakenOver | None = None
        """Where the previous process of this worker stopped."""
        self.has_begun = False
        """Whether a `Training` has started or resumed the run."""
        self.loads = 0
        """Number of calls to `Training.load`."""

    def resume(self, resumed: Resumed) -> None:
        """Resume the run from this checkpoint."""
        self._resumed = resumed
        self.resumed_from = resumed.path or None
        self._batches = resumed.batches

    def take_over(self, taken: TakenOver) -> None:
        """Resume where the previous process stopped."""
        self.taken = taken
        self.has_begun = taken.has_begun
        position = taken.position
        start = None if position is None else PassStart(positions=[position], applied=taken.applied)
        self._resumed = Resumed(
            fit=taken.fit,
            epoch=taken.epoch,
            is_ended=taken.is_ended,
            start=start,
            batches=taken.batches,
            store_step=taken.store_step,
            random=taken.random,
            reports=(),
        )
        self._batches = taken.batches

    @property
    def batches_before(self) -> int:
        """Return the number of batches trained on before the current pass."""
        return self._batches

    @property
    def batches(self) -> int:
        """Return the number of batches trained on so far, including the current pass."""
        return self._batches_now()

    def begin_fit(self) -> bool:
        """Count a call to `fit`; return False if it was finished before the checkpoint."""
        self.fit += 1
        self.epoch = 0
        self.feed = None
        self._is_ended = False
        resumed = self._resumed
        if resumed is None or self.fit > resumed.fit:
            return True
        if self.fit == resumed.fit:
            self.epoch = resumed.epoch
            self._is_ended = resumed.is_ended
        return self.fit == resumed.fit and not resumed.is_ended

    def take_start(self) -> tuple[PassStart | None, Mapping[str, Any] | None]:
        """Return the start of the next pass and the state of its random generators.

        None means the first batch, or unchanged generators. The values from a checkpoint are
        returned only once.
        """
        resumed = self._resumed
        if resumed is None or self.fit < resumed.fit:
            return None, None
        self._resumed = None
        return (resumed.start if self.fit == resumed.fit else None), resumed.random

    def end_epoch(self) -> None:
        """Count a finished pass."""
        self._batches = self._batches_now()
        self.feed = None
        self.epoch += 1

    def end_early(self) -> None:
        """Record that the current `fit` is finished, regardless of its number of epochs."""
        self._is_ended = True

    @property
    def resumed_reports(self) -> Sequence[WorkerReport] | None:
        """Return the reports of all workers in the checkpoint that was resumed.

        Available until the first step after resuming.
        """
        return None if self._resumed is None else self._resumed.reports

    def report(self, distributed: BoundModel) -> WorkerReport:
        """Return this worker's report for a checkpoint; call it while no thread trains."""
        feed = self.feed
        return WorkerReport(
            fit=self.fit,
            epoch=self.epoch,
            position=None if feed is None else feed.position(),
            is_through=feed is not None and feed.is_through,
            is_ended=self._is_ended,
            batches=self._batches_now(),
            schedule_steps=distributed.schedule_steps,
            store_step=distributed.store.step,
            random=distributed.random_state(),
        )

    def _batches_now(self) -> int:
        return self._batches + (0 if self.feed is None else self.feed.taken)


def _own_start(own: WorkerReport, reports: Sequence[WorkerReport]) -> PassStart | None:
    together = _start(reports)
    if together is None:
        return None
    return replace(_start([own]) or PassStart(positions=[DataPosition()]), together=together)


def _start(reports: Sequence[WorkerReport]) -> PassStart | None:
    positions = [report.position for report in reports]
    if all(position is None for position in positions):
        return None
    return PassStart(
        positions=[position or DataPosition() for position in positions],
        is_through=all(report.is_through for report in reports),
    )


def check_resume(resume: Resume, checkpoints: CheckpointConfig | None) -> None:
    """Raise ConfigError for contradictory settings."""
    if checkpoints is not None and not isinstance(checkpoints, CheckpointConfig):
        raise ConfigError(
            f"checkpoints must be a CheckpointConfig(directory=...) or None, got {checkpoints!r}"
        )
    if resume is not None and not isinstance(resume, (str, os.PathLike)):
        raise ConfigError(f"resume must be 'auto', a path or None, got {resume!r}")
    if resume == "auto" and checkpoints is None:
        raise ConfigError(
            "resume='auto' resumes from the newest checkpoint in the directory of "
            "checkpoints=CheckpointConfig(...), but checkpoints= is "
            "missing: pass it, or pass the path of a checkpoint as resume="
        )


def resume_training(
    distributed: BoundModel,
    resume: Resume,
    checkpoints: CheckpointConfig | None,
    *,
    quiet: bool,
) -> Resumed | None:
    """Load the checkpoint to resume from; return None if there is none.

    Must be called by all workers.

    "auto" skips damaged checkpoints with a warning, and raises an error if all checkpoints are
    damaged. Prints which checkpoint was resumed, unless `quiet`.
    """
    options = None if checkpoints is None else checkpoints.storage_options
    is_auto = resume == "auto" and checkpoints is not None
    place = checkpoints.directory if is_auto and checkpoints is not None else resume
    assert place is not None
    directory = absolute_path(place)
    damaged: set[str] = set()
    while True:

        def find(_: list[bytes]) -> bytes:
            """Find the checkpoint in the first worker; the other workers need no access to it."""
            if is_auto and checkpoints is not None:
                too_old = require_own_series(distributed, directory, checkpoints)
                return _describe_newest(directory, options, damaged, too_old)
            return _describe(Checkpoint.open(directory, options))

        answer = distributed.meeting.decide(b"", find)
        if answer is None:
            raise PeerLostError(
                f"cannot resume from {directory}: worker 0, which reads checkpoints, is lost"
            )
        if not answer:
            _report(f"no checkpoint in {directory} yet; training starts from scratch", quiet)
            return None
        found = json.loads(answer)
        try:
            resumed = _load(distributed, found, options)
            _report(f"resumed from {found['path']}, in epoch {resumed.epoch + 1}", quiet)
            return resumed
        except CorruptFileError as error:  # raised on every worker
            if not is_auto:
                raise
            damaged.add(found["path"])
            _log.warning("skipping a damaged checkpoint: %s", error)


def _describe_newest(
    directory: str, options: Mapping[str, Any] | None, damaged: set[str], too_old: set[str]
) -> bytes:
    """Load the newest intact checkpoint, or return b"" if there is no checkpoint.

    Skipped checkpoints are added to `damaged`.
    """
    while (newest := latest(directory, options, passing_over=damaged | too_old)) is not None:
        try:
            return _describe(newest)
        except (CheckpointMissingError, CorruptFileError) as error:
            damaged.add(newest.path)
            _log.warning("skipping a damaged checkpoint: %s", error)
    found = [each for each in list_checkpoints(directory, options) if each.path not in too_old]
    if found:
        raise CheckpointError(
            f"none of the {len(found)} checkpoints in {directory} can be loaded; see the log for "
            "the reasons. To start from scratch, use a different directory"
        )
    return b""


def _report(text: str, quiet: bool) -> None:
    _log.info(text)
    if not quiet:
        print(text, flush=True)


def _describe(checkpoint: Checkpoint) -> bytes:
    return json.dumps({"path": checkpoint.path, "workers": checkpoint.workers()}).encode()


def _load(
    distributed: BoundModel, found: Mapping[str, Any], options: Mapping[str, Any] | None
) -> Resumed:
    reports = [WorkerReport.from_json(report) for report in found["workers"]]
    if not reports:
        raise CheckpointError(
            f"{found['path']} contains a model but no training position, since it was saved by a "
            "single worker. Load it with Trainer.load(directory)"
        )
    distributed.load(found["path"], storage_options=options)
    role = distributed.role
    resumed = Resumed.of(reports, role.index, role.worker_num, path=found["path"])
    distributed.store.step = resumed.store_step
    return resumed
