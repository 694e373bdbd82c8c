"""Saves while training goes on: all workers stop for a moment, and the first one has it saved."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

from sparsefleet.train.checkpoint_config import CheckpointConfig
from sparsefleet.train.checkpoint_series import CheckpointSeries
from sparsefleet.train.save_gate import SaveGate
from sparsefleet.train.save_schedule import SaveSchedule
from sparsefleet.train.training_place import TrainingPlace
from sparsefleet.train.worker_report import WorkerReport

if TYPE_CHECKING:
    from sparsefleet.fleet.distributed_model import DistributedModel

__all__ = ["Checkpointing"]

_log = logging.getLogger("sparsefleet.train")


class Checkpointing:
    """The saves of one worker's `fit`; a `SavePoints` for its gate.

    Saves are numbered, and every worker comes to every one. One that has no more data waits for
    the next from then on: if nobody has data any more when all have come, the pass is over.

    place: where this worker's training is; kept up to date by the Trainer.
    """

    def __init__(
        self,
        distributed: DistributedModel,
        config: CheckpointConfig,
        place: TrainingPlace,
        series: CheckpointSeries,
    ) -> None:
        self._distributed = distributed
        self._config = config
        self._place = place
        self._series = series
        self._schedule = SaveSchedule(
            config,
            distributed.store,
            name=f"{distributed.name}/{place.fit}",
            is_alone=distributed.meeting.is_alone,
            steps_together=distributed.mode.steps_together,
        )
        self._step = 0
        self._is_last_pass = False
        self._is_over = False  # the first worker is lost: nobody can save any more

    def begin_pass(self) -> SaveGate:
        """The gate for the threads of the pass that now begins."""
        self._schedule.begin_pass()
        return SaveGate(
            self._distributed.threads,
            self,
            steps_together=self._distributed.mode.steps_together != "nobody",
            wait_s=self._distributed.wait_s,
        )

    def is_due(self, step: int) -> bool:
        """As `SavePoints`."""
        self._step = step
        return not self._is_over and self._schedule.is_due(step)

    def save(self) -> None:
        """In the pass, while the threads of this worker stand still."""
        self._meet(has_data=True)

    def end_pass(self, *, is_last: bool) -> None:
        """After a pass, when this worker's threads have ended; returns when it is over for all."""
        self._is_last_pass = is_last
        while not self._is_over and self._meet(has_data=False):
            pass
        self._place.end_epoch()

    def close(self) -> None:
        """Waits for the save under way, if any: in the first worker."""
        self._schedule.close()
        self._series.wait()

    def _meet(self, *, has_data: bool) -> bool:
        """One save of all workers; whether anybody has data left."""
        distributed = self._distributed
        distributed.mode.pause()
        report = self._place.report(distributed).to_json()
        is_last = self._is_last_pass and not has_data
        if is_last or not self._config.skip_while_writing:
            self._series.wait()
        answer = distributed.meeting.decide(
            json.dumps([has_data, report]).encode(), self._decide, patient=not has_data
        )
        self._schedule.saved(self._step if has_data else 0)
        if answer is None:
            self._is_over = True
            _log.error("worker 0 is lost, which writes the checkpoints: there will be no more")
            return False
        goes_on = answer == _GOES_ON
        if goes_on:
            distributed.mode.resume()
        return goes_on

    def _decide(self, given: list[bytes]) -> bytes:
        """In the first worker, while all stand still."""
        told = [json.loads(part) for part in given]
        reports = [WorkerReport.from_json(report) for _, report in told]
        if any(has_data for has_data, _ in told):
            _log.info("checkpoint %s", self._series.begin(reports))
            return _GOES_ON
        if self._config.each_epoch or self._is_last_pass:
            ended = [report.at_end_of_epoch() for report in reports]
            _log.info("checkpoint %s", self._series.begin(ended))
        return _IS_OVER


_GOES_ON = b"the pass goes on"
_IS_OVER = b"the pass is over"
