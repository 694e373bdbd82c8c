"""A save that all workers ask for and wait for."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from sparsefleet.errors import CheckpointError, SparseFleetError
from sparsefleet.fleet.model_checkpoint import ModelSave
from sparsefleet.train.worker_report import WorkerReport

if TYPE_CHECKING:
    from sparsefleet.fleet.distributed_model import DistributedModel

__all__ = ["save_together"]


def save_together(
    distributed: DistributedModel, directory: str | os.PathLike[str], report: WorkerReport
) -> None:
    """One checkpoint at one moment of all workers; all call it, each with its report.

    Returns when it is in force; where it cannot be written, raises on every worker.
    """
    save: ModelSave | None = None
    failure: Exception | None = None

    def open_cuts(given: list[bytes]) -> bytes:
        nonlocal save, failure
        reports = [WorkerReport.from_json(json.loads(part)) for part in given]
        try:
            save = ModelSave(
                distributed,
                directory,
                step=sum(report.batches for report in reports),
                workers=[report.to_json() for report in reports],
                schedule_steps=max(report.schedule_steps for report in reports),
            )
            save.open()
        except (SparseFleetError, OSError) as error:
            failure = error
        return b""

    distributed.mode.pause()
    distributed.meeting.decide(json.dumps(report.to_json()).encode(), open_cuts)
    distributed.mode.resume()
    if save is not None and failure is None:
        try:
            save.write()
        except (SparseFleetError, OSError) as error:
            failure = error
    told = distributed.meeting.decide(
        b"", lambda _: b"" if failure is None else str(failure).encode(), patient=True
    )
    if failure is not None:
        raise failure
    if told != b"":
        cause = "it is lost" if told is None else told.decode()
        raise CheckpointError(f"worker 0 could not save {os.fspath(directory)}: {cause}")
