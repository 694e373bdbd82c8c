"""Saves and updates while training goes on: all workers stop for a moment, and the first one has
them written."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from sparsefleet.train.background_writers import BackgroundWriters
from sparsefleet.train.rhythm import Rhythm
from sparsefleet.train.save_gate import SaveGate
from sparsefleet.train.save_schedule import SaveSchedule
from sparsefleet.train.training_place import TrainingPlace
from sparsefleet.train.worker_report import WorkerReport

if TYPE_CHECKING:
    from sparsefleet.fleet.distributed_model import DistributedModel

__all__ = ["TrainingStops"]

_log = logging.getLogger("sparsefleet.train")

_CHECKPOINT, _PUBLISH = "checkpoint", "publish"


class TrainingStops:
    """The stops of one worker's `fit`; a `SavePoints` for its gate.

    Stops are numbered, and every worker comes to every one. One that has no more data waits for
    the next from then on: if nobody has data any more when all have come, the pass is over.

    place: where this worker's training is; kept up to date by the Trainer.
    writers: what is done at a stop.
    """

    def __init__(
        self, distributed: DistributedModel, place: TrainingPlace, writers: BackgroundWriters
    ) -> None:
        self._distributed = distributed
        self._place = place
        self._writers = writers
        rhythms = {}
        for name, config in ((_CHECKPOINT, writers.checkpoints), (_PUBLISH, writers.publish)):
            if config is not None:
                rhythms[name] = Rhythm(config.every_steps, config.every_s)
        self._schedule = SaveSchedule(
            rhythms,
            distributed.board,
            name=f"{distributed.name}/{place.fit}",
            is_alone=distributed.meeting.is_alone,
            steps_together=distributed.mode.steps_together,
        )
        self._is_last_pass = False
        self._is_over = False  # the first worker is lost: nobody can write any more

    def begin_pass(self) -> SaveGate:
        """The gate for the threads of the pass that now begins."""
        self._schedule.begin_pass(self._distributed.mode.steps_taken)
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
        """Waits for what is being written, if anything: in the first worker."""
        self._schedule.close()
        self._writers.wait()

    def _meet(self, *, has_data: bool) -> bool:
        """One stop of all workers; whether anybody has data left."""
        mode, meeting = self._distributed.mode, self._distributed.meeting
        mode.pause()
        self._distributed.collect()
        told = {
            "has_data": has_data,
            "found": sorted(self._schedule.found),
            "rank": self._distributed.role.index,
            "steps": mode.steps_taken,
            "report": self._place.report(self._distributed).to_json(),
        }
        checkpoints = self._writers.checkpoints
        waits = checkpoints is not None and not checkpoints.skip_while_writing
        if waits:
            self._writers.wait()
        answer = meeting.decide(
            json.dumps(told).encode(), self._decide, patient=waits or not has_data
        )
        if answer is None:
            self._is_over = True
            _log.error("worker 0 is lost, which writes checkpoints and updates: no more will come")
            mode.resume()
            return False
        decided = json.loads(answer)
        self._schedule.end_stop(decided["steps"], done=decided["done"])
        if decided["goes_on"]:
            mode.resume()
        return bool(decided["goes_on"])

    def _decide(self, given: list[bytes]) -> bytes:
        """In the first worker, while all stand still."""
        told = [json.loads(part) for part in given]
        goes_on = any(each["has_data"] for each in told)
        found = {name for each in told for name in each["found"]}
        done = self._due(found, goes_on=goes_on)
        if not goes_on and self._is_last_pass:
            self._writers.wait()  # so that the last is not left out for the one before
        if self._writers.checkpoints is not None:
            self._checkpoint(told, begins=_CHECKPOINT in done, goes_on=goes_on)
        if _PUBLISH in done:
            _log.debug("update %s", self._writers.publishing.begin())
        steps = max(each["steps"] for each in told)
        return json.dumps({"goes_on": goes_on, "done": sorted(done), "steps": steps}).encode()

    def _due(self, found: Collection[str], *, goes_on: bool) -> set[str]:
        """What is to be done at this stop."""
        due = set(found)
        checkpoints = self._writers.checkpoints
        if checkpoints is not None and not goes_on:
            due.discard(_CHECKPOINT)
            if checkpoints.each_epoch or self._is_last_pass:
                due.add(_CHECKPOINT)
        if self._writers.publish is not None and not goes_on and self._is_last_pass:
            due.add(_PUBLISH)
        return due

    def _checkpoint(self, told: list[dict[str, Any]], *, begins: bool, goes_on: bool) -> None:
        series = self._writers.series
        reports = series.reports_of_all(
            {each["rank"]: WorkerReport.from_json(each["report"]) for each in told}
        )
        if not goes_on:
            reports = [report.at_end_of_epoch() for report in reports]
        if begins:
            _log.info("checkpoint %s", series.begin(reports))
