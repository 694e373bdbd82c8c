"""One pass over the data by all training threads of this worker."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from sparsefleet.errors import SparseFleetError
from sparsefleet.store import RemoteStore
from sparsefleet.train.batch_source import BatchFeed, BatchSource
from sparsefleet.train.batch_supply import (
    BatchSupply,
    DirectSupply,
    PrefetchingSupply,
    SteppingSupply,
)
from sparsefleet.train.history import Epoch
from sparsefleet.train.progress_reporter import PassProgress, ProgressReporter
from sparsefleet.train.random_state import set_random_state
from sparsefleet.train.same_files import warn_of_same_files
from sparsefleet.train.save_gate import SaveGate
from sparsefleet.train.step_clock import total
from sparsefleet.train.thread_team import ThreadTeam
from sparsefleet.train.time_shares import TimeShares
from sparsefleet.train.trainer_config import TrainerConfig
from sparsefleet.train.training_place import TrainingPlace
from sparsefleet.train.training_stops import TrainingStops
from sparsefleet.train.training_thread import Place, TrainingThread

if TYPE_CHECKING:
    from sparsefleet.fleet.distributed_model import DistributedModel

__all__ = ["TrainingPass"]

_log = logging.getLogger("sparsefleet.train")


class TrainingPass:
    """Trains on all batches of `source` once. Made for one pass."""

    def __init__(
        self,
        distributed: DistributedModel,
        loss: Callable[[Any, Any], Tensor] | None,
        config: TrainerConfig,
        *,
        epoch: int,
        epochs: int,
    ) -> None:
        self._distributed = distributed
        self._config = config
        self._epoch = epoch
        self._epochs = epochs
        self._stopped = threading.Event()
        worker = distributed.role.index
        self._threads = [
            TrainingThread(distributed, replica, loss, config, Place(epoch, worker, index))
            for index, replica in enumerate(distributed.replicas(distributed.threads))
        ]
        for replica in distributed.replicas(distributed.threads):
            replica.train()

    def run(
        self,
        source: BatchSource,
        reporter: ProgressReporter,
        *,
        place: TrainingPlace,
        stops: TrainingStops | None = None,
    ) -> tuple[Epoch, TimeShares]:
        """Returns when all threads have run out of data. After an error the model is finished.

        place: where the training is; the pass begins there. stops: now and then in it.
        """
        start, random = place.take_start()
        feed = place.feed = source.begin_pass(start)
        if random is not None:
            set_random_state(random)
        if self._epoch == 1:
            warn_of_same_files(self._distributed, feed.data)
        gate = None if stops is None else stops.begin_pass()
        clocks = [thread.clock for thread in self._threads]
        progress = PassProgress(
            epoch=self._epoch,
            epochs=self._epochs,
            num_batches=source.num_batches,
            clocks=clocks,
            stats_before=self._distributed.mode.stats(),
            reading=source.reading,
        )
        reporter.begin_pass(progress)
        try:
            self._run_threads(feed, gate)
        except BaseException:
            feed.let_go()
            reporter.stop()
            self._abandon()
            raise
        seconds = time.monotonic() - progress.begun
        waited_s = self._distributed.mode.stats().wait_seconds - progress.stats_before.wait_seconds
        snapshot = reporter.end_pass(progress)
        counted = total(clocks)
        if feed.taken == 0 and start is None:
            _log.warning(
                "epoch %d: the data of worker %d gave no batch, so that nothing was trained here",
                self._epoch,
                self._distributed.role.index,
            )
        epoch = Epoch(
            number=self._epoch,
            examples=counted.examples,
            steps=counted.steps,
            skipped=counted.skipped,
            seconds=seconds,
            loss=counted.loss,
            metrics=snapshot.metrics,
            reading=source.reading.so_far(),
        )
        return epoch, TimeShares.of(counted, waited_s)

    def _run_threads(self, feed: BatchFeed, gate: SaveGate | None) -> None:
        def run(index: int) -> None:
            self._threads[index].run(self._supply(feed), gate)

        def stop_the_others(error: BaseException) -> None:
            self._stopped.set()
            feed.stop()
            if gate is not None:
                gate.fail(error)
            self._distributed.fail(error)

        team = ThreadTeam(
            len(self._threads),
            torch_threads=self._config.torch_threads,
            stop_timeout_s=self._config.stop_timeout_s,
        )
        team.run(run, stop_the_others)

    def _supply(self, feed: BatchFeed) -> BatchSupply:
        mode, wanted = self._distributed.mode, self._config.prefetch
        if wanted is None and isinstance(self._distributed.store, RemoteStore):
            if mode.brings_rows:
                return SteppingSupply(feed, self._distributed.plan_ahead)
            wanted = mode.may_prefetch
        if not wanted:
            return DirectSupply(feed)
        return PrefetchingSupply(feed, self._distributed.prefetch, self._stopped)

    def _abandon(self) -> None:
        """Ends the mode, which has failed; training again begins with a new one."""
        try:
            self._distributed.finish()
        except SparseFleetError as error:  # the one that is being raised says more
            _log.warning("after the failure: %s", error)
