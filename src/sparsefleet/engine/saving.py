"""Consistent saves: all workers pause together, and the first remaining worker writes.

Validation within an epoch uses the same pauses.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from sparsefleet.checkpoint.series import SeriesOwner
from sparsefleet.engine.checkpoint_series import CheckpointSeries
from sparsefleet.engine.events import Attendance, Events
from sparsefleet.engine.model_checkpoint import ModelSave
from sparsefleet.engine.notice import HandedOver, HandoverPauses, Notice
from sparsefleet.engine.publishing import Publishing
from sparsefleet.engine.save_schedule import HANDOVER, CheckpointConfig, Interval, SaveSchedule
from sparsefleet.engine.training_progress import TrainingProgress, WorkerReport
from sparsefleet.errors import CheckpointError, SparseFleetError
from sparsefleet.modes.thread_round import ThreadRound
from sparsefleet.serving.updates.publisher import PublishConfig

if TYPE_CHECKING:
    from sparsefleet.engine.bound_model import BoundModel

__all__ = [
    "BackgroundWriters",
    "PausePoint",
    "PausedValidation",
    "Pauses",
    "SaveCoordinator",
    "save_now",
]


_log = logging.getLogger("sparsefleet.engine")

_CHECKPOINT, _PUBLISH, _VALIDATION = "checkpoint", "publish", "validation"


class BackgroundWriters:
    """Writes checkpoints and updates to a served model in the background during training.

    Only the first remaining worker writes.
    """

    def __init__(
        self,
        distributed: BoundModel,
        checkpoints: CheckpointConfig | None,
        publish: PublishConfig | None,
        events: Events,
        owner: SeriesOwner | None = None,
    ) -> None:
        self._distributed = distributed
        self._events = events
        self._owner = owner
        self.checkpoints = checkpoints
        self.publish = publish
        self._open: list[CheckpointSeries | Publishing] = []
        if checkpoints is not None:
            self._open.append(self.series)
        if publish is not None and distributed.role.is_first_worker:
            _ = self.publishing

    @cached_property
    def series(self) -> CheckpointSeries:
        """Return the checkpoint series; available if `checkpoints` is set."""
        assert self.checkpoints is not None
        return CheckpointSeries(self._distributed, self.checkpoints, self._events, self._owner)

    @cached_property
    def publishing(self) -> Publishing:
        """Return the publisher; available in the worker that writes, if `publish` is set."""
        assert self.publish is not None
        made = Publishing(self._distributed, self.publish)
        self._open.append(made)
        return made

    def wait(self) -> None:
        """Wait until the current write is committed or has failed."""
        for writer in self._open:
            writer.wait()

    def close(self) -> None:
        """Wait for current writes, then release the right to publish."""
        self.wait()
        for writer in self._open:
            if isinstance(writer, Publishing):
                writer.close()

    def raise_last_error(self) -> None:
        """Raise CheckpointError or PublishError if the last save or update failed."""
        for writer in self._open:
            writer.raise_last_error()


class PausedValidation(Protocol):
    """Evaluates within an epoch, while all workers pause."""

    every_steps: int
    """Number of steps a worker takes between two evaluations."""

    def run(self, step: int) -> bool:
        """Evaluate; return whether to stop the pass now, the same on all workers. All must call it.

        step: the number of batches that all workers together have trained on.
        """


class SaveCoordinator:
    """The pauses of one worker's `fit`, in which checkpoints, updates and validations start.

    Pauses are numbered, and every worker takes part in each. A worker that has run out of data
    waits for the next pause; the pass ends when all workers have arrived and none has data left.

    progress: the position of this worker, which training updates.
    notice: whether this worker was asked to exit. With checkpoints, all workers then save a
        checkpoint and exit.
    validation: evaluates within epochs; None means no validation.
    """

    def __init__(
        self,
        distributed: BoundModel,
        progress: TrainingProgress,
        writers: BackgroundWriters,
        attendance: Attendance,
        *,
        notice: Notice,
        validation: PausedValidation | None = None,
    ) -> None:
        self._notice = notice
        together = writers.checkpoints is not None
        self._handover = None if together else HandoverPauses(distributed, notice)
        self._distributed = distributed
        self._progress = progress
        self._attendance = attendance
        self._writers = writers
        intervals = {}
        for name, config in ((_CHECKPOINT, writers.checkpoints), (_PUBLISH, writers.publish)):
            if config is not None:
                intervals[name] = Interval(config.every_steps, config.every_s)
        self._validation = validation
        self._validated_at = -1
        if validation is not None:
            intervals[_VALIDATION] = Interval(validation.every_steps, None)
        self._schedule = SaveSchedule(
            intervals,
            distributed.board,
            name=f"{distributed.name}/{progress.fit}",
            is_alone=distributed.meeting.is_alone,
            steps_together=distributed.mode.steps_together,
            notice=(lambda: notice.is_given) if together else None,
        )
        taken = progress.taken
        self._taken = taken if taken is not None and taken.fit == progress.fit else None
        if self._taken is not None and self._taken.saves is not None:
            self._schedule.continue_from(self._taken.saves)
        self._is_last_pass = False
        self._in_pass = True
        self._is_over = False  # no worker is left to write
        self.was_stopped = False
        """Whether a validation stopped the pass, on all workers."""
        self.is_validated = False
        """Whether the model has not been trained since the last validation of the pass."""

    def begin_pass(self, threads: int) -> PausePoint:
        """Return the pause point for the threads of the next pass."""
        self._schedule.begin_pass(self._distributed.mode.steps_taken)
        self.is_validated = False
        taken, self._taken = self._taken, None
        if taken is not None:
            self._catch_up()
        return PausePoint(
            threads,
            self,
            steps_together=self._distributed.mode.steps_together != "nobody",
            wait_s=self._distributed.wait_s,
            is_due=taken is not None and self.is_due(0),
        )

    def _catch_up(self) -> None:
        """Repeat the pauses that this worker's previous process began but did not record."""
        while (text := self._distributed.meeting.sent_before()) is not None:
            if not json.loads(text).get("has_data"):  # this was not a pause but the end of its pass
                return
            self.run()

    def is_due(self, step: int) -> bool:
        """Return whether to pause after `step`; implements `Pauses`."""
        if self._handover is not None and self._handover.is_due(step):
            return True
        return not self._is_over and self._schedule.is_due(step)

    def run(self) -> None:
        """Implement `Pauses`: synchronize with other workers while this worker's threads wait."""
        if self._handover is not None and self._handover.is_due(0):
            self._handover.run()
        self._meet(has_data=True)
        succession, feed = self._distributed.succession, self._progress.feed
        if succession is not None and feed is not None:
            succession.paused(self._distributed, feed.taken, self._schedule.state())

    def end_pass(self, *, is_last: bool) -> None:
        """Block until the pass is over for all workers.

        Call it when this worker's threads are done.

        is_last: whether this is the last pass.
        """
        self._is_last_pass = is_last or self.was_stopped
        while not self._is_over and self._meet(has_data=False):
            pass
        self._progress.end_epoch()

    def end_early(self) -> None:
        """Save as `end_pass` would have done at the end of the last pass.

        Must be called by all workers, between epochs.
        """
        self._is_last_pass, self._in_pass = True, False
        if not self._is_over:
            self._meet(has_data=False)

    def save_again(self) -> None:
        """Save again, since training continued after the pass. Must be called by all workers."""
        was_last, self._is_last_pass, self._in_pass = self._is_last_pass, True, False
        if not self._is_over:
            self._meet(has_data=False)
        self._is_last_pass, self._in_pass = was_last, True

    def close(self) -> None:
        """Wait, in the first worker, for writes in progress."""
        self._schedule.close()
        self._writers.wait()

    def _meet(self, *, has_data: bool) -> bool:
        """Pause together with all workers; return whether any worker has data left."""
        mode, meeting = self._distributed.mode, self._distributed.meeting
        mode.pause()
        self._distributed.collect()
        mine = {
            "has_data": has_data,
            "found": sorted(self._schedule.found),
            "rank": self._distributed.role.index,
            "steps": mode.steps_taken,
            "report": self._progress.report(self._distributed).to_json(),
        }
        checkpoints = self._writers.checkpoints
        waits = checkpoints is not None and not checkpoints.skip_while_writing
        if waits:
            self._writers.wait()
        answer = meeting.decide(
            json.dumps(mine).encode(), self._decide, patient=waits or not has_data
        )
        if answer is None:
            self._is_over = True
            self._attendance.lose(0)
            _log.error(
                "no worker is left to write checkpoints and updates; no more will be written"
            )
            mode.resume()
            return False
        decided = json.loads(answer)
        self._attendance.update(decided["present"])
        # A process that continues the job from its servers repeats this meeting and continues.
        if HANDOVER in decided["done"] and decided["start"] == self._notice.start:
            self._writers.wait()
            self._writers.raise_last_error()
            raise HandedOver
        self._schedule.end_pause(decided["steps"], done=decided["done"])
        if self._validation is not None and _VALIDATION in decided["done"]:
            self._validate(self._validation, decided["batches"])
        self.is_validated = decided["batches"] == self._validated_at
        if decided["continues"]:
            mode.resume()
        return bool(decided["continues"])

    def _validate(self, validation: PausedValidation, step: int) -> None:
        self._validated_at = step
        if validation.run(step):
            self.was_stopped = self._is_last_pass = True
            self._progress.end_early()
            if self._progress.feed is not None:
                self._progress.feed.stop()

    def _decide(self, given: list[bytes]) -> bytes:
        """Decide, in the first remaining worker, what to do while all workers are paused."""
        reports = [json.loads(part) for part in given]
        continues = any(each["has_data"] for each in reports)
        found = {name for each in reports for name in each["found"]}
        done = self._due(found, continues=continues)
        if HANDOVER in done or (not continues and self._is_last_pass):
            self._writers.wait()  # the last save would be skipped if another were still in progress
        if self._writers.checkpoints is not None:
            self._checkpoint(reports, begins=_CHECKPOINT in done, continues=continues)
        if _PUBLISH in done:
            _log.debug("update %s", self._writers.publishing.begin())
        steps = max(each["steps"] for each in reports)
        return json.dumps(
            {
                "continues": continues,
                "done": sorted(done),
                "steps": steps,
                "batches": sum(each["report"]["batches"] for each in reports),
                "present": [each["rank"] for each in reports],
                "start": self._notice.start,
            }
        ).encode()

    def _due(self, found: Collection[str], *, continues: bool) -> set[str]:
        """Return the actions to take in this pause, such as saving or evaluating."""
        due = set(found)
        if not continues:  # the epoch's validation follows
            due -= {_VALIDATION, HANDOVER}
        checkpoints = self._writers.checkpoints
        if HANDOVER in due:
            due = {HANDOVER, _CHECKPOINT}
        if checkpoints is not None and not continues:
            due.discard(_CHECKPOINT)
            if checkpoints.each_epoch or self._is_last_pass:
                due.add(_CHECKPOINT)
        if self._writers.publish is not None and not continues and self._is_last_pass:
            due.add(_PUBLISH)
        return due

    def _checkpoint(self, given: list[dict[str, Any]], *, begins: bool, continues: bool) -> None:
        series = self._writers.series
        reports = series.reports_of_all(
            {each["rank"]: WorkerReport.from_json(each["report"]) for each in given}
        )
        if not continues and self._in_pass:
            reports = [report.at_end_of_epoch() for report in reports]
        if begins:
            _log.info("checkpoint %s", series.begin(reports))


def save_now(
    distributed: BoundModel,
    directory: str | os.PathLike[str],
    progress: TrainingProgress,
    user_notes: Mapping[str, Any] | None = None,
    *,
    is_paused: bool = False,
) -> None:
    """Write one consistent checkpoint; must be called by all workers, each with its progress.

    Returns when the checkpoint is committed. If it cannot be written, every worker raises an error.
    user_notes: stored in the manifest, as passed by the first worker. is_paused: whether the
    workers are already paused; if so, they stay paused.
    """
    saves: list[ModelSave] = []

    def open_save(given: list[bytes]) -> bytes:
        """Open the save in the first worker, while all are paused."""
        reports = progress.resumed_reports or [
            WorkerReport.from_json(json.loads(part)) for part in given
        ]
        save = ModelSave.of_workers(distributed, directory, reports, user_notes=user_notes)
        save.open()
        saves.append(save)
        return b""

    report = json.dumps(progress.report(distributed).to_json()).encode()
    with _paused(distributed) if not is_paused else contextlib.nullcontext():
        distributed.meeting.decide(report, open_save)
    failure: Exception | None = None
    for save in saves:  # runs in the first worker; the others wait for the result
        try:
            save.write()
        except (SparseFleetError, OSError) as error:
            failure = error

    def report_result(given: list[bytes]) -> bytes:
        if failure is not None:
            raise failure
        if not saves:  # the process that opened the save is gone, and nobody has trained since then
            open_save(given)
            saves[0].write()
        return b"saved"

    if distributed.meeting.decide(report, report_result, patient=True) is None:
        raise CheckpointError(
            f"the checkpoint {os.fspath(directory)} was not saved: no worker was left to write it"
        )


@contextlib.contextmanager
def _paused(distributed: BoundModel) -> Iterator[None]:
    distributed.mode.pause()
    distributed.collect()
    try:
        yield
    finally:
        distributed.mode.resume()


class Pauses(Protocol):
    """Decides when threads pause, and runs the work during a pause."""

    def is_due(self, step: int) -> bool:
        """Return whether to pause after a thread has taken `step` steps in this pass.

        Called for each step of each thread; if threads step together, called once for all of them,
        one step ahead.
        """

    def run(self) -> None:
        """Do the work of the pause; called by one thread while the other threads wait."""


class PausePoint:
    """Blocks all threads, each before its next step, when a pause is due. Thread-safe.

    A blocked thread has no batch read ahead, so the position that the data reports is exactly what
    has been trained on.

    steps_together: whether the threads take each step together, so that no thread may stop while
        another waits for it in a step. The pause is then announced one step ahead, and all threads
        stop at the same step.
    """

    def __init__(
        self,
        threads: int,
        pauses: Pauses,
        *,
        steps_together: bool,
        wait_s: float,
        is_due: bool = False,
    ) -> None:
        """Create a pause point. is_due: whether to pause before the first step."""
        self._pauses = pauses
        self._together = steps_together
        self._round: ThreadRound[None] = ThreadRound(
            threads, self._run, wait_s=wait_s, is_patient=True
        )
        self._lock = threading.Lock()
        self._is_due = is_due
        self._stop_at = 0 if is_due else -1  # the step at which all stop, if they step together
        self._stopped_at = -1
        self._looked_at = -1

    def reach(self, step: int, *, has_ahead: bool) -> bool:
        """Pause between two steps if due; return whether to read ahead in the next step.

        step: the number of steps that the calling thread has finished in this pass.
        has_ahead: whether the thread has a batch, read ahead, that it has not trained on yet.
        """
        if self._together:
            return self._reach_together(step)
        with self._lock:
            self._is_due = self._is_due or self._pauses.is_due(step)
            if not self._is_due:
                return True
        if has_ahead:
            return False
        self._round.meet(None)
        return True

    def leave(self) -> None:
        """Report that the calling thread has no more data, so others stop waiting for it."""
        self._round.leave()

    def fail(self, error: BaseException) -> None:
        """Make all threads that wait at this pause point raise `error`."""
        self._round.fail(error)

    def _reach_together(self, step: int) -> bool:
        with self._lock:
            stops_here = step == self._stop_at and step > self._stopped_at
        if stops_here:
            self._round.meet(None)
        with self._lock:
            if step > self._looked_at:  # the first thread to arrive decides for all
                self._looked_at = step
                if self._pauses.is_due(step + 1):
                    self._stop_at = step + 1
            return self._stop_at != step + 1

    def _run(self, _: object) -> None:
        try:
            self._pauses.run()
        finally:
            with self._lock:
                self._is_due = False
                self._stopped_at = self._stop_at
