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
        self._is_last_pass = False
        self._is_over = False  # the first worker is lost: nobody can save any more

    def begin_pass(self) -> SaveGate:
        """The gate for the threads of the pass that now begins."""
        self._schedule.begin_pass(self._distributed.mode.steps_of_schedule)
        return SaveGate(
            self._distributed.threads,
            self,
            steps_together=self._distributed.mode.steps_together != "nobody",
            wait_s=self._distributed.wait_s,
        )

    def is_due(self, step: int) -> bool:
        """As `SavePoints`."""
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
        mode, meeting = self._distributed.mode, self._distributed.meeting
        mode.pause()
        told = {
            "has_data": has_data,
            "rank": self._distributed.role.index,
            "steps": mode.steps_of_schedule,
            "report": self._place.report(self._distributed).to_json(),
        }
        waits = not self._config.skip_while_writing
        if waits:
            self._series.wait()
        answer = meeting.decide(
            json.dumps(told).encode(), self._decide, patient=waits or not has_data
        )
        if answer is None:
            self._is_over = True
            _log.error("worker 0 is lost, which writes the checkpoints: there will be no more")
            mode.resume()
            return False
        decided = json.loads(answer)
        self._schedule.end_save(decided["steps"], counts=decided["counts"])
        if decided["goes_on"]:
            mode.resume()
        return bool(decided["goes_on"])

    def _decide(self, given: list[bytes]) -> bytes:
        """In the first worker, while all stand still."""
        told = [json.loads(part) for part in given]
        reports = self._series.reports_of_all(
            {each["rank"]: WorkerReport.from_json(each["report"]) for each in told}
        )
        goes_on = any(each["has_data"] for each in told)
        counts = goes_on or self._config.each_epoch or self._is_last_pass
        if not goes_on:
            reports = [report.at_end_of_epoch() for report in reports]
            if self._is_last_pass:
                self._series.wait()  # so that the last save is not left out for it
        if counts:
            _log.info("checkpoint %s", self._series.begin(reports))
        steps = max(each["steps"] for each in told)
        return json.dumps({"goes_on": goes_on, "counts": counts, "steps": steps}).encode()
