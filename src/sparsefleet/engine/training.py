"""Trains one workload epoch by epoch: start, resume, passes, saves, evaluation, end."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Generic, TypeVar

from sparsefleet.engine.batch_source import BatchSource
from sparsefleet.engine.bound_model import BoundModel
from sparsefleet.engine.events import (
    Attendance,
    EpochEnded,
    Evaluated,
    EvaluatedWithin,
    Events,
    Failed,
    FitBegan,
    FitEnded,
    PassEnded,
    PassResult,
)
from sparsefleet.engine.lost_data import LostData, add_left_out
from sparsefleet.engine.notice import HandedOver, Notice, is_state_kept
from sparsefleet.engine.save_schedule import CheckpointConfig
from sparsefleet.engine.saving import BackgroundWriters, SaveCoordinator, save_now
from sparsefleet.engine.series_claim import claim_series, owner_of_series
from sparsefleet.engine.training_pass import InferencePass, LoopConfig, TrainingPass
from sparsefleet.engine.training_progress import TrainingProgress, check_resume, resume_training
from sparsefleet.engine.trial import TrialRecord, process_trial
from sparsefleet.engine.worker_metrics import WORKER
from sparsefleet.engine.workload import Batch, Outcome, Workload
from sparsefleet.errors import ConfigError, SparseFleetError
from sparsefleet.serving.updates.publisher import PublishConfig

__all__ = ["Training"]

_log = logging.getLogger("sparsefleet.engine")

Evaluate = Callable[[], Mapping[str, float]]
AnyModel = TypeVar("AnyModel", bound=BoundModel)


class Training(Generic[AnyModel]):
    """Trains a workload on a model that is bound to a store. Not thread-safe.

    checkpoints, publish: settings for the files written during training.
    resume: "auto" resumes from the newest checkpoint in the directory of `checkpoints`; a path
        resumes from that checkpoint.
    events: the events to which displays and callbacks subscribe.
    progress: where an earlier `Training` of the same model stopped; None means the start.
    """

    def __init__(
        self,
        distributed: AnyModel,
        workload: Workload,
        config: LoopConfig,
        *,
        checkpoints: CheckpointConfig | None = None,
        publish: PublishConfig | None = None,
        resume: str | os.PathLike[str] | None = None,
        events: Events | None = None,
        progress: TrainingProgress | None = None,
    ) -> None:
        check_resume(resume, checkpoints)
        trial = process_trial()
        if trial is not None:  # a trial writes nothing that the script's real runs would find
            checkpoints = publish = resume = None
        self.distributed = distributed
        """The model, as created by its API."""
        self.events = events or Events()
        self._workload = workload
        self._config = config
        self._checkpoints = checkpoints
        self._publish = publish
        self._resume = resume
        self.progress = progress or TrainingProgress()
        """The position of this worker in the training run."""
        self._writers: BackgroundWriters | None = None
        self._attendance = Attendance(distributed.role.worker_num, self.events)
        self.metrics = WORKER
        """The metrics that Prometheus and dashboards read."""
        self.metrics.attach(self.events)
        self.trial: TrialRecord | None = None if trial is None else trial.attach(self)
        """The results recorded for `sparsefleet plan --try`, if this is a trial."""
        self._all_left = False
        self._closed = False
        self._stop_requested = False
        self._is_paused = False
        self.was_stopped = False
        """Whether the last `fit` was stopped early."""

    # -- life ---------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start the model, and resume if requested; later calls do nothing."""
        if self._closed:
            raise ConfigError("this trainer is closed: create a new one")
        if not self.distributed.is_started:
            self.distributed.start()
            self._all_left = False
        self.metrics.serve(self.distributed)
        self._take_over()
        self._take_over_rank()
        if self._resume is not None:
            resumed = resume_training(
                self.distributed, self._resume, self._checkpoints, quiet=self._config.quiet
            )
            self._resume = None  # set only now, since a retry must not start from scratch
            if resumed is not None:
                self.progress.resume(resumed)
        succession = self.distributed.succession
        if succession is not None and not self.progress.has_begun:
            succession.begun(self.distributed, self.progress)
        self.progress.has_begun = True

    def _take_over(self) -> None:
        """Resume where the previous process stopped, unless an earlier call has done so."""
        succession = self.distributed.succession
        taken = None if succession is None else succession.taken
        if succession is None or taken is None:
            return
        succession.taken = None
        self.progress.take_over(taken)
        self._all_left = taken.has_left
        if taken.has_begun:
            self._resume = None

    def _take_over_rank(self) -> None:
        """If this process replaces a lost rank, continue from the state of the other ranks."""
        replacement = self.distributed.replacement
        if replacement is not None and replacement.resumed is not None:
            self.progress.resume(replacement.resumed)
            self._resume = replacement.resumed = None

    def close(self) -> None:
        """Wait for background writes, apply all pending updates, and close connections."""
        self._closed = True
        self.metrics.release(self.distributed)
        if self._writers is not None:
            self._writers.close()
        self.distributed.close()

    def close_after(self, error: BaseException) -> None:
        """Close because the script raised `error`.

        If another process may replace this one, leave everything in place for it.
        """
        is_success = isinstance(error, SystemExit) and error.code in (0, None)
        if self.distributed.succession is not None and not is_success:
            self.distributed.fail(error)
        self.close()

    def raise_last_error(self) -> None:
        """Raise CheckpointError or PublishError if the last save or update failed."""
        if self._writers is not None:
            self._writers.raise_last_error()

    # -- work ---------------------------------------------------------------------------------

    def request_stop(self) -> None:
        """Stop the current `fit` after this epoch, or after the next validation within it.

        Applies to all workers; needs `may_stop`. Thread-safe. Does nothing outside of `fit` or at
        the end of its last epoch.
        """
        self._stop_requested = True

    def fit(
        self,
        source: BatchSource,
        epochs: int,
        evaluate: Evaluate | None = None,
        *,
        evaluate_every_steps: int | None = None,
        may_stop: bool = False,
    ) -> list[PassResult]:
        """Train for `epochs` epochs on `source`; return the result of each.

        evaluate: computes validation metrics after each epoch, on all workers.
        evaluate_every_steps: also evaluate within epochs, when a worker has taken this many steps
            since the last evaluation; all workers pause for the evaluation.
        may_stop: whether `request_stop` may be called; workers then agree after each epoch whether
            to continue. Must be the same on all workers.

        Returns when all updates are applied and the model has the store's parameters. If training
        resumed from a checkpoint that was written after this call had finished, returns an empty
        list at once.
        """
        self.begin()
        may_stop = may_stop or self.trial is not None
        if not self.progress.begin_fit():
            self._log_finished()
            self._meet_after_last()
            return []
        self._meet_after_last()
        if self.progress.epoch >= epochs:
            self._log_finished()
        self._stop_requested = self.was_stopped = False
        within = None
        if evaluate is not None and evaluate_every_steps is not None:
            within = _WithinEpochs(self, evaluate, evaluate_every_steps, epochs, may_stop)
        keeps = is_state_kept() and self.distributed.succession is not None
        notice = Notice(
            is_heeded=keeps or self._checkpoints is not None,
            may_abort=keeps and self._checkpoints is None,
        )
        is_done = False
        try:
            with notice:
                results = self._fit(source, epochs, evaluate, within, notice, may_stop=may_stop)
                is_done = True
        except HandedOver as ended:
            if is_done:  # the notice arrived at the last moment
                self._fail(ended)
            raise
        return results

    def _fit(
        self,
        source: BatchSource,
        epochs: int,
        evaluate: Evaluate | None,
        within: _WithinEpochs | None,
        notice: Notice,
        *,
        may_stop: bool,
    ) -> list[PassResult]:
        saves = self._begin_saves(within, notice)
        results: list[PassResult] = []
        try:
            self.events.emit(FitBegan(self.progress.epoch + 1, epochs))
            for number in range(self.progress.epoch + 1, epochs + 1):
                result = self._run_epoch(source, number, epochs, saves, evaluate, within, notice)
                results.append(result)
                self.events.deliver()
                self.events.emit(EpochEnded(result))
                if saves is not None and saves.was_stopped:
                    self.was_stopped = True
                    break
                if may_stop and self._agree_to_stop(is_last=number == epochs):
                    self._end_early(saves)
                    break
            if saves is not None:
                saves.close()
            self.events.deliver()
            if self.distributed.succession is not None:
                self.distributed.succession.end_fit(self.distributed, self.progress)
            notice.heed()
            self.events.emit(FitEnded(self.progress.epoch, self.was_stopped))
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            if saves is not None:
                saves.close()
        return results

    def infer(
        self,
        source: BatchSource,
        use: Callable[[int, Batch, Outcome], None],
        *,
        in_order: bool = False,
    ) -> None:
        """Run inference with the workload over `source`; see `InferencePass.run`."""
        InferencePass(self.distributed, self._workload, self._config).run(
            source, use, in_order=in_order
        )

    def save(
        self, directory: str | os.PathLike[str], notes: Mapping[str, Any] | None = None
    ) -> None:
        """Write a consistent checkpoint and wait for its commit; all workers must call it."""
        self.begin()
        if self.trial is not None and self.trial.refuse(f"saving to {os.fspath(directory)}"):
            return
        save_now(self.distributed, directory, self.progress, notes, is_paused=self._is_paused)

    def load(self, directory: str | os.PathLike[str]) -> None:
        """Load the model and tables, but not the training position; all workers must call it."""
        self.begin()
        self.progress.loads += 1
        taken = self.progress.taken
        if taken is not None and self.progress.loads <= len(taken.loads):
            self.distributed.meeting.continue_from(taken.loads[self.progress.loads - 1])
            return
        self.distributed.load(directory)
        self._all_left = False
        if self.distributed.succession is not None:
            self.distributed.succession.loaded(self.distributed)

    # -- inside -------------------------------------------------------------------------------

    def _run_epoch(
        self,
        source: BatchSource,
        number: int,
        epochs: int,
        saves: SaveCoordinator | None,
        evaluate: Evaluate | None,
        within: _WithinEpochs | None,
        notice: Notice,
    ) -> PassResult:
        model = self.distributed
        if self._all_left:
            model.rejoin()
        source.reading.begin()
        this_pass = TrainingPass(
            model, self._workload, self._config, self.events, epoch=number, epochs=epochs
        )
        view, result = this_pass.run(
            source,
            progress=self.progress,
            saves=saves,
            notice=notice if notice.is_heeded else None,
        )
        self._all_left = True
        self.events.emit(PassEnded(view, result))
        if saves is None:
            self.progress.end_epoch()
        else:
            saves.end_pass(is_last=number == epochs)
        self._train_for_lost(source, number, epochs, saves)
        if evaluate is None:
            model.flush()
        else:
            model.settle()
            if within is not None and saves is not None and saves.is_validated:
                figures = within.figures
            else:
                figures = evaluate()
            self.events.emit(Evaluated(number, epochs, figures))
            result = replace(result, validation=figures)
        return result

    def _train_for_lost(
        self, source: BatchSource, number: int, epochs: int, saves: SaveCoordinator | None
    ) -> None:
        """Train on the data that lost workers left in this pass, together with the others."""
        model, succession = self.distributed, self.distributed.succession
        if succession is None or not model.meeting.continues_without_lost or model.meeting.is_alone:
            return
        epoch, has_trained = succession.pass_number, False
        lost = LostData(model, succession.incarnation, self._attendance)
        while (found := lost.divide(epoch))[0]:
            has_trained = True
            left = None if found[1] is None else lost.take(found[1], epoch, source)
            model.rejoin()
            this_pass = TrainingPass(
                model, self._workload, self._config, self.events, epoch=number, epochs=epochs
            )
            this_pass.run_left(None if left is None else left.begin())
            model.flush()
            if left is not None:
                lost.finished(left, epoch)
        add_left_out(model.left_out, lost.left_out)
        if has_trained and saves is not None:
            saves.save_again()

    def _meet_after_last(self) -> None:
        """Skip the synchronizations that this worker's previous process took part in, if any."""
        taken, fit = self.progress.taken, self.progress.fit
        if taken is not None and fit <= taken.fit:
            is_over = fit <= len(taken.fits)
            self.distributed.meeting.continue_from(taken.fits[fit - 1] if is_over else taken.met)

    def _log_finished(self) -> None:
        if self.progress.taken is not None:
            _log.info("fit %d was finished by the previous process", self.progress.fit)
            return
        message = (
            f"fit {self.progress.fit} was finished when {self.progress.resumed_from} was saved, so "
            "nothing is left to train. To train again, use a different directory or resume=None"
        )
        _log.info("%s", message)
        if not self._config.quiet:
            print(message, flush=True)

    def _agree_to_stop(self, *, is_last: bool) -> bool:
        """Return whether to stop before the next epoch.

        Must be called by all workers; all get the same answer. After the last epoch there is
        nothing to agree on; the workers meet only to detect whether a worker was lost.
        """
        meeting = self.distributed.meeting
        if is_last and not meeting.continues_without_lost:
            return False

        def decide(given: list[bytes]) -> bytes:
            reported = [json.loads(part) for part in given]
            present = [each["rank"] for each in reported]
            return json.dumps(
                {"stops": any(each["stops"] for each in reported), "present": present}
            ).encode()

        mine = {"rank": self.distributed.role.index, "stops": self._stop_requested}
        answer = meeting.decide(json.dumps(mine).encode(), decide, patient=True)
        if answer is None:  # nobody is left to decide for all
            self._attendance.lose(0)
            return False
        decided = json.loads(answer)
        self._attendance.update(decided["present"])
        return bool(decided["stops"]) and not is_last

    def validate_paused(
        self, evaluate: Evaluate, epochs: int, step: int, *, may_stop: bool
    ) -> tuple[Mapping[str, float], bool]:
        """Evaluate while all workers pause; return the metrics, and whether all agree to stop.

        The random generators are restored, so the evaluation does not affect training.
        """
        model = self.distributed
        random = model.random_state()
        self._is_paused = True
        try:
            model.settle()
            figures = evaluate()
            model.set_random_state(random)
            self.events.emit(EvaluatedWithin(self.progress.epoch + 1, epochs, step, figures))
            return figures, may_stop and self._agree_to_stop(is_last=False)
        finally:
            self._is_paused = False

    def _end_early(self, saves: SaveCoordinator | None) -> None:
        self.was_stopped = True
        self.progress.end_early()
        if saves is not None:
            saves.end_early()

    def _fail(self, error: BaseException) -> None:
        """Report an error to subscribers and other workers, and close the mode.

        The other workers treat this worker as lost. If training starts again, it starts a new mode.
        """
        self.events.emit_to_all(Failed(error))  # first, since displays look at the mode
        self.distributed.fail(error)
        try:
            self.distributed.finish()
        except SparseFleetError as another:  # the error being raised is more informative
            _log.warning("after the failure: %s", another)

    def _claim_series(self) -> None:
        """Make this run the owner of its checkpoint directory, unless it already is."""
        progress, checkpoints = self.progress, self._checkpoints
        if checkpoints is None or progress.owned == os.fspath(checkpoints.directory):
            return
        taken = progress.taken
        if taken is not None and taken.owned == os.fspath(checkpoints.directory):
            progress.owner = owner_of_series(self.distributed, checkpoints)
            progress.owned = taken.owned
            return
        progress.owner = claim_series(self.distributed, checkpoints, progress.resumed_from)
        progress.owned = os.fspath(checkpoints.directory)
        if self.distributed.succession is not None:
            self.distributed.succession.owns(progress.owned)

    def _begin_saves(self, within: _WithinEpochs | None, notice: Notice) -> SaveCoordinator | None:
        if self._checkpoints is None and self._publish is None and within is None:
            return None
        if self._writers is None:
            self._claim_series()
            self._writers = BackgroundWriters(
                self.distributed,
                self._checkpoints,
                self._publish,
                self.events,
                self.progress.owner,
            )
        return SaveCoordinator(
            self.distributed,
            self.progress,
            self._writers,
            self._attendance,
            notice=notice,
            validation=within,
        )


class _WithinEpochs:
    """Evaluates within the epochs of a training run; implements `PausedValidation`."""

    def __init__(
        self,
        training: Training[Any],
        evaluate: Evaluate,
        every_steps: int,
        epochs: int,
        may_stop: bool,
    ) -> None:
        self.every_steps = every_steps
        self.figures: Mapping[str, float] = {}
        """The metrics of the last validation."""
        self._training = training
        self._evaluate = evaluate
        self._epochs = epochs
        self._may_stop = may_stop

    def run(self, step: int) -> bool:
        self.figures, stops = self._training.validate_paused(
            self._evaluate, self._epochs, step, may_stop=self._may_stop
        )
        return stops
