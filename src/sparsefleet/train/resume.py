"""Going on from a checkpoint of an earlier run."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sparsefleet.checkpoint import Checkpoint, latest, list_checkpoints
from sparsefleet.errors import (
    CheckpointError,
    CheckpointMissingError,
    ConfigError,
    CorruptFileError,
)
from sparsefleet.store.checkpoint_path import absolute_path
from sparsefleet.train.checkpoint_config import CheckpointConfig
from sparsefleet.train.data_position import DataPosition, PassStart
from sparsefleet.train.worker_report import WorkerReport

if TYPE_CHECKING:
    from sparsefleet.fleet.distributed_model import DistributedModel

__all__ = ["Resumed", "check_resume", "resume_training"]

_log = logging.getLogger("sparsefleet.train")

Resume = str | os.PathLike[str] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Resumed:
    """Where this worker goes on."""

    fit: int
    """The call of `fit` that the checkpoint was made in."""

    epoch: int
    """Epochs finished in it."""

    start: PassStart | None
    """In the epoch after those; None: at its first batch."""

    batches: int
    """Batches trained on before; over all workers they add up to what was saved."""

    store_step: int
    random: Mapping[str, Any] | None

    reports: Sequence[WorkerReport]
    """Of all workers of the earlier run."""

    @staticmethod
    def of(reports: Sequence[WorkerReport], rank: int, worker_num: int) -> Resumed:
        """What worker `rank` takes up of the reports of all workers of the earlier run.

        With another number of workers than then, its data goes on where all of them were.
        """
        if len(reports) == worker_num:
            own = reports[rank]
            return Resumed(
                fit=own.fit,
                epoch=own.epoch,
                start=_own_start(own, reports),
                batches=own.batches,
                store_step=own.store_step,
                random=own.random or None,  # a worker that was lost before the first save
                reports=reports,
            )
        return Resumed(
            fit=max(report.fit for report in reports),
            epoch=max(report.epoch for report in reports),
            start=_start(reports),
            batches=sum(report.batches for report in reports) if rank == 0 else 0,
            store_step=max(report.store_step for report in reports),
            random=None,
            reports=reports,
        )


def check_resume(resume: Resume, checkpoints: CheckpointConfig | None) -> None:
    """Refuses what cannot be meant."""
    if checkpoints is not None and not isinstance(checkpoints, CheckpointConfig):
        raise ConfigError(
            f"checkpoints must be a CheckpointConfig(directory=...) or None, got {checkpoints!r}"
        )
    if resume is not None and not isinstance(resume, (str, os.PathLike)):
        raise ConfigError(f"resume must be 'auto', a path or None, got {resume!r}")
    if resume == "auto" and checkpoints is None:
        raise ConfigError(
            "resume='auto' goes on from the newest of the checkpoints=CheckpointConfig(...), but "
            "there are none: give them, or the path of a checkpoint"
        )


def resume_training(
    distributed: DistributedModel,
    resume: Resume,
    checkpoints: CheckpointConfig | None,
    *,
    quiet: bool,
) -> Resumed | None:
    """Loads the checkpoint; None if there is none to go on from. All workers call it.

    "auto" passes over those that are damaged, which is logged; where all are, it raises. What is
    taken up is printed, unless `quiet`.
    """
    options = None if checkpoints is None else checkpoints.storage_options
    is_auto = resume == "auto" and checkpoints is not None
    place = checkpoints.directory if is_auto and checkpoints is not None else resume
    assert place is not None
    directory = absolute_path(place)
    damaged: set[str] = set()
    while True:

        def find(_: list[bytes]) -> bytes:
            """In the first worker; the others need not see the directory."""
            if is_auto:
                return _describe_newest(directory, options, damaged)
            return _describe(Checkpoint.open(directory, options))

        answer = distributed.meeting.decide(b"", find)
        if not answer:
            _tell(f"no checkpoint in {directory} yet: training begins from the start", quiet)
            return None
        found = json.loads(answer)
        try:
            resumed = _take_up(distributed, found, options)
            _tell(f"resumed from {found['path']}, in epoch {resumed.epoch + 1}", quiet)
            return resumed
        except CorruptFileError as error:  # on every worker
            if not is_auto:
                raise
            damaged.add(found["path"])
            _log.warning("passing over a checkpoint that is damaged: %s", error)


def _describe_newest(directory: str, options: Mapping[str, Any] | None, damaged: set[str]) -> bytes:
    """Empty if there is no checkpoint; adds to `damaged` what it passes over."""
    while (newest := latest(directory, options, passing_over=damaged)) is not None:
        try:
            return _describe(newest)
        except (CheckpointMissingError, CorruptFileError) as error:
            damaged.add(newest.path)
            _log.warning("passing over a checkpoint that is damaged: %s", error)
    found = list_checkpoints(directory, options)
    if found:
        raise CheckpointError(
            f"none of the {len(found)} checkpoints in {directory} can be loaded, the log says why; "
            "to begin from the start all the same give another directory"
        )
    return b""


def _tell(text: str, quiet: bool) -> None:
    _log.info(text)
    if not quiet:
        print(text, flush=True)


def _describe(checkpoint: Checkpoint) -> bytes:
    return json.dumps({"path": checkpoint.path, "workers": checkpoint.workers()}).encode()


def _take_up(
    distributed: DistributedModel, found: Mapping[str, Any], options: Mapping[str, Any] | None
) -> Resumed:
    reports = [WorkerReport.from_json(report) for report in found["workers"]]
    if not reports:
        raise CheckpointError(
            f"{found['path']} holds a model but not where its training was: it was saved by one "
            "worker alone. Take it up with Trainer.load(directory)"
        )
    distributed.load(found["path"], storage_options=options)
    role = distributed.role
    resumed = Resumed.of(reports, role.index, role.worker_num)
    distributed.store.step = resumed.store_step
    return resumed


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
