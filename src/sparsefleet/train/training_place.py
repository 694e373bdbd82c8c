"""Where a worker is in its training, from process to process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sparsefleet.train.batch_source import BatchFeed
from sparsefleet.train.data_position import PassStart
from sparsefleet.train.random_state import random_state
from sparsefleet.train.resume import Resumed
from sparsefleet.train.worker_report import WorkerReport

if TYPE_CHECKING:
    from sparsefleet.fleet.distributed_model import DistributedModel

__all__ = ["TrainingPlace"]


class TrainingPlace:
    """Counts calls of `fit`, epochs and batches, on from a checkpoint if there is one.

    A script that is started again makes the calls of `fit` that it made before: those that the
    checkpoint has behind it are passed over, and the one it was made in goes on.
    """

    def __init__(self) -> None:
        self.fit = 0
        """Calls of `fit` begun."""
        self.epoch = 0
        """Epochs finished in the last of them."""
        self.feed: BatchFeed | None = None
        """The pass under way."""
        self._batches = 0
        self._resumed: Resumed | None = None

    def take_up(self, resumed: Resumed) -> None:
        """The training goes on from this checkpoint."""
        self._resumed = resumed
        self._batches = resumed.batches

    def begin_fit(self) -> bool:
        """One call more; False if the checkpoint has it behind it."""
        self.fit += 1
        self.epoch = 0
        self.feed = None
        resumed = self._resumed
        if resumed is None or self.fit > resumed.fit:
            return True
        if self.fit == resumed.fit:
            self.epoch = resumed.epoch
        return self.fit == resumed.fit

    def take_start(self) -> tuple[PassStart | None, Mapping[str, Any] | None]:
        """Where the pass that now begins is to start, and with which random generators; once.

        None: at the first batch, with the generators as they are.
        """
        resumed = self._resumed
        if resumed is None or self.fit < resumed.fit:
            return None, None
        self._resumed = None
        return (resumed.start if self.fit == resumed.fit else None), resumed.random

    def end_epoch(self) -> None:
        """The pass is over."""
        self._batches = self._batches_now()
        self.feed = None
        self.epoch += 1

    @property
    def taken_up(self) -> Sequence[WorkerReport] | None:
        """Until the first step after a checkpoint was taken up: all that it said of its workers."""
        return None if self._resumed is None else self._resumed.reports

    def report(self, distributed: DistributedModel) -> WorkerReport:
        """What a checkpoint is to remember; called while no thread trains."""
        feed = self.feed
        return WorkerReport(
            fit=self.fit,
            epoch=self.epoch,
            position=None if feed is None else feed.position(),
            is_through=feed is not None and feed.is_through,
            batches=self._batches_now(),
            schedule_steps=distributed.schedule_steps,
            store_step=distributed.store.step,
            random=random_state(),
        )

    def _batches_now(self) -> int:
        return self._batches + (0 if self.feed is None else self.feed.taken)
