"""What a checkpoint remembers of one worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sparsefleet.errors import CheckpointError
from sparsefleet.train.data_position import DataPosition

__all__ = ["WorkerReport"]


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerReport:
    """Where a worker is in its training: enough to go on as if nothing had been.

    >>> report = WorkerReport(fit=1, epoch=2, position=DataPosition(batches=7))
    >>> WorkerReport.from_json(report.to_json()) == report
    True
    """

    fit: int
    """Calls of `fit` begun."""

    epoch: int
    """Epochs finished in the last of them."""

    position: DataPosition | None = None
    """In the epoch under way; None between two."""

    is_through: bool = False
    """The epoch is under way, but not for this worker: it has no more data."""

    batches: int = 0
    """Batches trained on since the training began, in whatever process."""

    schedule_steps: int = 0
    """Where the schedule of learning rates is, as far as this worker knows."""

    store_step: int = 0
    """The number that its next push is stamped with."""

    random: Mapping[str, Any] = field(default_factory=dict)
    """The random generators of its process."""

    def at_end_of_epoch(self) -> WorkerReport:
        """The same when the epoch is over for all workers."""
        return replace(self, epoch=self.epoch + 1, position=None, is_through=False)

    def moved_to(self, other: WorkerReport) -> WorkerReport:
        """The same in the epoch of another worker: at its first batch, if it was not in it."""
        if (self.fit, self.epoch) == (other.fit, other.epoch):
            return self
        return replace(self, fit=other.fit, epoch=other.epoch, position=None, is_through=False)

    def to_json(self) -> dict[str, Any]:
        return {
            "fit": self.fit,
            "epoch": self.epoch,
            "position": None if self.position is None else self.position.to_json(),
            "is_through": self.is_through,
            "batches": self.batches,
            "schedule_steps": self.schedule_steps,
            "store_step": self.store_step,
            "random": dict(self.random),
        }

    @staticmethod
    def from_json(found: Mapping[str, Any]) -> WorkerReport:
        """The inverse of `to_json`."""
        try:
            position = found["position"]
            return WorkerReport(
                fit=int(found["fit"]),
                epoch=int(found["epoch"]),
                position=None if position is None else DataPosition.from_json(position),
                is_through=bool(found["is_through"]),
                batches=int(found["batches"]),
                schedule_steps=int(found["schedule_steps"]),
                store_step=int(found["store_step"]),
                random=dict(found["random"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"the checkpoint says nothing of where its workers were: {found!r:.200}"
            ) from error
