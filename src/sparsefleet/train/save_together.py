"""A save that all workers ask for and wait for."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from sparsefleet.errors import CheckpointError, SparseFleetError
from sparsefleet.fleet.model_checkpoint import ModelSave
from sparsefleet.train.training_place import TrainingPlace
from sparsefleet.train.worker_report import WorkerReport

if TYPE_CHECKING:
    from sparsefleet.fleet.distributed_model import DistributedModel

__all__ = ["save_together"]


def save_together(
    distributed: DistributedModel, directory: str | os.PathLike[str], place: TrainingPlace
) -> None:
    """One checkpoint at one moment of all workers; all call it, each with its place.

    Returns when it is in force; where it cannot be written, raises on every worker.
    """
    saves: list[ModelSave] = []

    def open_cuts(given: list[bytes]) -> bytes:
        """In the first worker, while all stand still."""
        reports = place.taken_up or [WorkerReport.from_json(json.loads(part)) for part in given]
        save = ModelSave(
            distributed,
            directory,
            step=sum(report.batches for report in reports),
            workers=[report.to_json() for report in reports],
            schedule_steps=max(report.schedule_steps for report in reports),
        )
        save.open()
        saves.append(save)
        return b""

    report = place.report(distributed).to_json()
    distributed.mode.pause()
    distributed.collect()
    try:
        distributed.meeting.decide(json.dumps(report).encode(), open_cuts)
    finally:
        distributed.mode.resume()
    failure: Exception | None = None
    for save in saves:  # in the first worker; the others wait for what comes of it
        try:
            save.write()
        except (SparseFleetError, OSError) as error:
            failure = error

    def tell(_: list[bytes]) -> bytes:
        if failure is not None:
            raise failure
        return b"saved"

    if distributed.meeting.decide(b"", tell, patient=True) is None:
        raise CheckpointError(f"worker 0 was lost while it saved {os.fspath(directory)}")
