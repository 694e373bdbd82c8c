"""User code that runs while a Trainer trains, and ready-made callbacks."""

from __future__ import annotations

import difflib
import json
import logging
import math
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, Literal

from sparsefleet.engine.events import (
    EpochEnded,
    Evaluated,
    EvaluatedWithin,
    Events,
    Failed,
    FitBegan,
    FitEnded,
    PassBegan,
    Saved,
    SaveFailed,
    StepDone,
    WorkerLost,
)
from sparsefleet.engine.model_checkpoint import read_user_notes
from sparsefleet.engine.thread_team import add_note
from sparsefleet.errors import ConfigError
from sparsefleet.train.history import Epoch

if TYPE_CHECKING:
    from sparsefleet.train.trainer import Trainer

__all__ = ["Callback", "EarlyStopping", "JsonLinesLogger", "LearningRateLogger", "SaveBest"]

_log = logging.getLogger("sparsefleet.train")

_TRAIN = "train_"
_BEST = "best"

Arguments = Callable[[Any], tuple[Any, ...]]
"""Converts an event to the arguments of a hook, apart from the trainer."""


class Callback:
    """Base class of callbacks. Override the hooks you need; the others cost nothing.

    Every worker runs the callbacks, so all must have the same callbacks in the same order. For
    an action that should happen only once, check ``trainer.distributed.role.is_first_worker``. An
    exception from a hook stops training, with a note that names the callback.

    Hooks run one at a time, in the thread that called `fit` or, for `on_step_end`,
    `on_evaluate_within`, `on_save`, `on_save_failed` and `on_worker_lost`, possibly in a training
    thread.

    >>> class Shout(Callback):
    ...     def on_epoch_end(self, trainer, epoch):
    ...         print(f"epoch {epoch.number} is over!")
    """

    def on_fit_begin(self, trainer: Trainer, epochs: int) -> None:
        """Called when `fit` starts or resumes, to train up to `epochs` epochs."""

    def on_epoch_begin(self, trainer: Trainer, epoch: int) -> None:
        """Called when epoch number `epoch`, counted from 1, starts."""

    def on_step_end(self, trainer: Trainer, step: StepDone) -> None:
        """Called after every step of every thread, so keep it short."""

    def on_evaluate(self, trainer: Trainer, epoch: int, figures: Mapping[str, float]) -> None:
        """Called after the validation of an epoch; the metrics are the same on all workers."""

    def on_evaluate_within(self, trainer: Trainer, evaluated: EvaluatedWithin) -> None:
        """Called after a validation within an epoch (`TrainerConfig.validate_every_steps`).

        All workers pause. Call `trainer.stop()` to stop `fit` now, without the rest of the epoch.
        """

    def on_epoch_end(self, trainer: Trainer, epoch: Epoch) -> None:
        """Called after an epoch and its validation. Call `trainer.stop()` to stop `fit` now."""

    def on_save(self, trainer: Trainer, saved: Saved) -> None:
        """Called in the first worker when a checkpoint written for `checkpoints=` is committed."""

    def on_save_failed(self, trainer: Trainer, failed: SaveFailed) -> None:
        """Called in the first worker when a checkpoint could not be written; training continues."""

    def on_worker_lost(self, trainer: Trainer, rank: int) -> None:
        """Called when a worker is lost and the others continue (`launch --keep-going`).

        The loss is detected when workers synchronize, which is after each epoch and for each
        checkpoint.
        """

    def on_error(self, trainer: Trainer, error: BaseException) -> None:
        """Called when training stops with this error, which `fit` raises afterwards."""

    def on_fit_end(self, trainer: Trainer, epochs: int) -> None:
        """Called when `fit` ends without an error, after `epochs` epochs in total."""


class _Monitor:
    """Tracks one metric across validations."""

    def __init__(
        self, owner: object, name: str, mode: Literal["auto", "min", "max"], min_delta: float = 0.0
    ) -> None:
        self._owner = type(owner).__name__
        self._is_subclass = type(owner).__module__ != __name__  # which may add its own figures
        self.name = name
        if mode not in ("auto", "min", "max"):
            raise ConfigError(f"{self._owner}.mode must be 'auto', 'min' or 'max', got {mode!r}")
        if not min_delta >= 0:
            raise ConfigError(f"{self._owner}.min_delta must be >= 0, got {min_delta!r}")
        self._sign = 1.0 if mode == "max" or (mode == "auto" and "loss" not in name) else -1.0
        self._min_delta = min_delta
        self.best = math.nan
        self.best_epoch = 0
        self._seen: Mapping[str, float] | None = None

    def begin(self, trainer: Trainer) -> None:
        """Forget earlier epochs. Raises ConfigError if `fit` will never compute the metric."""
        self.best, self.best_epoch, self._seen = math.nan, 0, None
        names = trainer.figure_names
        if not self._is_subclass:
            self._require(names, has_validation="loss" in names)

    def update_within(self, evaluated: EvaluatedWithin) -> bool | None:
        """Like `update`, but return None if the metric exists only for whole epochs."""
        if self.name.startswith(_TRAIN):
            return None
        self._seen = evaluated.figures
        return self._compare(self._find(evaluated.figures, has_validation=True), evaluated.epoch)

    def update(self, epoch: Epoch) -> bool | None:
        """Return whether the epoch is the best so far; if it is, record it.

        Return None if `update_within` has already seen this state of the model.
        """
        if epoch.validation is not None and epoch.validation is self._seen:
            return None
        figures = {f"{_TRAIN}{name}": value for name, value in epoch.metrics.items()}
        figures[f"{_TRAIN}loss"] = epoch.loss
        figures.update(epoch.validation or {})
        value = self._find(figures, has_validation=bool(epoch.validation))
        return self._compare(value, epoch.number)

    def _compare(self, value: float, epoch: int) -> bool:
        better = self._sign * (value - self.best) > self._min_delta
        if math.isfinite(value) and (math.isnan(self.best) or better):
            self.best, self.best_epoch = value, epoch
            return True
        return False

    def _find(self, figures: Mapping[str, float], *, has_validation: bool) -> float:
        hint = (
            "; the default metrics need one probability per example: pass metrics=[...], and "
            "TrainerConfig(predictions=...) if the loss does not imply how to compute it"
        )
        self._require(figures, has_validation=has_validation, hint=hint)
        return figures[self.name]

    def _require(self, names: Iterable[str], *, has_validation: bool, hint: str = "") -> None:
        if self.name in names:
            return
        if not has_validation:
            hint = "; pass fit(..., validation=...) for more"
        raise ConfigError(
            f"{self._owner}(monitor={self.name!r}): no such metric; available: "
            f"{', '.join(sorted(names))}{hint}"
        )


class EarlyStopping(Callback):
    """Stops `fit` on all workers after the same epoch, once a metric stops improving.

    With `TrainerConfig(validate_every_steps=...)`, validations within epochs are also considered,
    and `fit` may stop after one of them.

    monitor: a metric on the validation data ("loss", "auc", ...), or on the training data with the
        prefix "train_" ("train_loss").
    mode: "min" if smaller values are better, "max" if larger values are better; "auto" means "min"
        for names that contain "loss" and "max" for all others.
    patience: the number of validations without improvement after which training stops.
    min_delta: the smallest change that counts as an improvement.

    A resumed `fit` counts its validations without improvement from zero.

    >>> EarlyStopping("auc", patience=2).patience
    2
    """

    def __init__(
        self,
        monitor: str = "loss",
        *,
        mode: Literal["auto", "min", "max"] = "auto",
        patience: int = 3,
        min_delta: float = 0.0,
    ) -> None:
        if not isinstance(patience, int) or patience < 1:
            raise ConfigError(f"EarlyStopping.patience must be an int >= 1, got {patience!r}")
        self._monitor = _Monitor(self, monitor, mode, min_delta)
        self.patience = patience
        self.waited = 0
        """Number of validations since the last improvement."""

    @property
    def best(self) -> float:
        """Return the best value so far; nan before the first epoch."""
        return self._monitor.best

    @property
    def best_epoch(self) -> int:
        """Return the epoch of the best value, counted from 1; 0 before the first epoch."""
        return self._monitor.best_epoch

    def on_fit_begin(self, trainer: Trainer, epochs: int) -> None:
        del epochs
        self._monitor.begin(trainer)
        self.waited = 0

    def on_evaluate_within(self, trainer: Trainer, evaluated: EvaluatedWithin) -> None:
        self._count(
            trainer,
            self._monitor.update_within(evaluated),
            f"step {evaluated.step} in epoch {evaluated.epoch}",
        )

    def on_epoch_end(self, trainer: Trainer, epoch: Epoch) -> None:
        self._count(trainer, self._monitor.update(epoch), f"epoch {epoch.number}")

    def _count(self, trainer: Trainer, is_better: bool | None, place: str) -> None:
        if is_better is None:
            return
        self.waited = 0 if is_better else self.waited + 1
        if self.waited >= self.patience:
            _log.info(
                "stopping after %s: %s has not improved on %.6g from epoch %d",
                place,
                self._monitor.name,
                self.best,
                self.best_epoch,
            )
            trainer.stop()


class SaveBest(Callback):
    """Saves the model after each epoch that is the best so far. Load it with `Trainer.load`.

    With `TrainerConfig(validate_every_steps=...)`, it also saves after validations within epochs.

    The first worker's value decides for all, so every worker takes part in the same saves. A
    resumed `fit` keeps the best model of the earlier run until it finds a better model. For monitor
    and mode, see `EarlyStopping`.

    directory: one checkpoint, replaced atomically; see `Trainer.save`.

    >>> SaveBest("best", "auc").best_epoch
    0
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        monitor: str = "loss",
        *,
        mode: Literal["auto", "min", "max"] = "auto",
    ) -> None:
        self.directory = directory
        self._monitor = _Monitor(self, monitor, mode)

    @property
    def best(self) -> float:
        """Return the value of the saved epoch; nan before the first save."""
        return self._monitor.best

    @property
    def best_epoch(self) -> int:
        """Return the saved epoch, counted from 1; 0 before the first save."""
        return self._monitor.best_epoch

    def on_fit_begin(self, trainer: Trainer, epochs: int) -> None:
        del epochs
        self._monitor.begin(trainer)
        if trainer.epochs_done:
            self._resume(trainer)

    def on_evaluate_within(self, trainer: Trainer, evaluated: EvaluatedWithin) -> None:
        self._save_if(trainer, self._monitor.update_within(evaluated))

    def on_epoch_end(self, trainer: Trainer, epoch: Epoch) -> None:
        self._save_if(trainer, self._monitor.update(epoch))

    def _save_if(self, trainer: Trainer, is_better: bool | None) -> None:
        meeting = trainer.distributed.meeting
        mine = b"better" if is_better else b"not better"
        if meeting.decide(mine, lambda given: given[0], patient=True) == b"better":
            best = {"monitor": self._monitor.name, "value": self.best, "epoch": self.best_epoch}
            trainer.save(self.directory, notes={_BEST: best})

    def _resume(self, trainer: Trainer) -> None:
        """Restore the best value of an earlier run from the checkpoint in `directory`."""

        def read(_: list[bytes]) -> bytes:
            return json.dumps(read_user_notes(self.directory).get(_BEST)).encode()

        found = json.loads(trainer.distributed.meeting.decide(b"", read) or b"null")
        if found is not None and found["monitor"] == self._monitor.name:
            self._monitor.best, self._monitor.best_epoch = found["value"], found["epoch"]


class LearningRateLogger(Callback):
    """Logs the learning rate of each table after each epoch, and every `every_steps` steps.

    Sparse tables are listed by name; "dense" is the first group of dense parameters. Log records go
    to the logger "sparsefleet.train".

    >>> LearningRateLogger(every_steps=100).rates
    []
    """

    def __init__(self, every_steps: int | None = None) -> None:
        if every_steps is not None and (not isinstance(every_steps, int) or every_steps < 1):
            raise ConfigError(
                f"LearningRateLogger.every_steps must be an int >= 1 or None, got {every_steps!r}"
            )
        self._every_steps = every_steps
        self._steps = 0
        self.rates: list[tuple[int, dict[str, float]]] = []
        """For each log record, the number of steps this worker had taken, and the rates."""

    def on_step_end(self, trainer: Trainer, step: StepDone) -> None:
        del step
        self._steps += 1
        if self._every_steps is not None and self._steps % self._every_steps == 0:
            self._record(trainer)

    def on_epoch_end(self, trainer: Trainer, epoch: Epoch) -> None:
        del epoch
        self._record(trainer)

    def _record(self, trainer: Trainer) -> None:
        rates = trainer.distributed.learning_rates()
        self.rates.append((self._steps, rates))
        shown = ", ".join(f"{table} {rate:.6g}" for table, rate in rates.items())
        _log.info("learning rates after %d steps: %s", self._steps, shown)


class JsonLinesLogger(Callback):
    """Appends events to a file, one JSON object per line; the first worker writes it.

    >>> JsonLinesLogger("log.jsonl").path
    'log.jsonl'
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._file: IO[str] | None = None

    def on_fit_begin(self, trainer: Trainer, epochs: int) -> None:
        if trainer.distributed.role.is_first_worker:
            self._file = open(self.path, "a", encoding="utf-8")  # noqa: SIM115  (until on_fit_end)
        self._write(event="fit_begin", epochs=epochs)

    def on_epoch_end(self, trainer: Trainer, epoch: Epoch) -> None:
        del trainer
        self._write(
            event="epoch_end",
            epoch=epoch.number,
            examples=epoch.examples,
            seconds=epoch.seconds,
            loss=epoch.loss,
            metrics=dict(epoch.metrics),
            validation=None if epoch.validation is None else dict(epoch.validation),
        )

    def on_evaluate_within(self, trainer: Trainer, evaluated: EvaluatedWithin) -> None:
        del trainer
        self._write(
            event="evaluate",
            epoch=evaluated.epoch,
            step=evaluated.step,
            validation=dict(evaluated.figures),
        )

    def on_save(self, trainer: Trainer, saved: Saved) -> None:
        del trainer
        self._write(event="save", path=saved.path, step=saved.step, seconds=saved.seconds)

    def on_save_failed(self, trainer: Trainer, failed: SaveFailed) -> None:
        del trainer
        self._write(event="save_failed", path=failed.path, error=str(failed.error))

    def on_worker_lost(self, trainer: Trainer, rank: int) -> None:
        del trainer
        self._write(event="worker_lost", rank=rank)

    def on_error(self, trainer: Trainer, error: BaseException) -> None:
        del trainer
        self._write(event="error", error=f"{type(error).__name__}: {error}")
        self._close()

    def on_fit_end(self, trainer: Trainer, epochs: int) -> None:
        del trainer
        self._write(event="fit_end", epochs=epochs)
        self._close()

    def _write(self, **fields: Any) -> None:
        if self._file is not None:
            self._file.write(json.dumps(_without_nan(fields)) + "\n")
            self._file.flush()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class CallbackRunner:
    """Calls the hooks of callbacks when engine events occur.

    epoch_of: converts an `EpochEnded` to the epoch that users see.
    """

    def __init__(
        self,
        trainer: Trainer,
        callbacks: Sequence[Callback],
        epoch_of: Callable[[EpochEnded], Epoch],
    ) -> None:
        self._trainer = trainer
        self._callbacks = callbacks
        self._epoch_of = epoch_of
        self._lock = threading.RLock()

    def attach(self, events: Events) -> None:
        """Subscribe the overridden hooks."""
        self._subscribe(events, FitBegan, "on_fit_begin", lambda e: (e.epochs,))
        self._subscribe(events, PassBegan, "on_epoch_begin", lambda e: (e.view.epoch,))
        self._subscribe(events, StepDone, "on_step_end", lambda e: (e,))
        self._subscribe(events, Evaluated, "on_evaluate", lambda e: (e.epoch, e.figures))
        self._subscribe(events, EvaluatedWithin, "on_evaluate_within", lambda e: (e,))
        self._subscribe(events, EpochEnded, "on_epoch_end", lambda e: (self._epoch_of(e),))
        self._subscribe(events, Saved, "on_save", lambda e: (e,))
        self._subscribe(events, SaveFailed, "on_save_failed", lambda e: (e,))
        self._subscribe(events, WorkerLost, "on_worker_lost", lambda e: (e.rank,))
        self._subscribe(events, Failed, "on_error", lambda e: (e.error,))
        self._subscribe(events, FitEnded, "on_fit_end", lambda e: (e.epochs,))

    def _subscribe(self, events: Events, kind: type[Any], hook: str, arguments: Arguments) -> None:
        for callback in self._callbacks:
            if getattr(type(callback), hook) is getattr(Callback, hook):
                continue
            events.subscribe(kind, self._call(callback, hook, arguments))

    def _call(self, callback: Callback, hook: str, arguments: Arguments) -> Callable[[Any], None]:
        method = getattr(callback, hook)

        def call(event: Any) -> None:
            try:
                with self._lock:
                    method(self._trainer, *arguments(event))
            except Exception as error:
                add_note(error, f"raised by the callback {type(callback).__name__}.{hook}")
                raise

        return call


def check_callbacks(callbacks: Sequence[object]) -> list[Callback]:
    """Return the callbacks as a list.

    Raises ConfigError for anything that is not a callback, and for a method that looks like a hook
    but is none, which would never be called.
    """
    if isinstance(callbacks, Callback):
        raise ConfigError(
            f"callbacks must be a list, got one {type(callbacks).__name__}: pass callbacks=[...]"
        )
    hooks = [name for name in vars(Callback) if name.startswith("on_")]
    found: list[Callback] = []
    for callback in callbacks:
        if not isinstance(callback, Callback):
            hint = " (pass an instance)" if isinstance(callback, type) else ""
            raise ConfigError(
                f"callbacks must be instances of sparsefleet.train.Callback, got {callback!r}{hint}"
            )
        for name in dir(type(callback)):
            near = difflib.get_close_matches(name, hooks, n=1, cutoff=0.8)
            if name.startswith("on_") and name not in hooks and near:
                raise ConfigError(
                    f"{type(callback).__name__}.{name} is not a hook and is never called; did you "
                    f"mean {near[0]!r}? Give a method of your own a name without 'on_'"
                )
        found.append(callback)
    return found


def _without_nan(value: Any) -> Any:
    """Replace nan with None, since JSON has no nan."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _without_nan(part) for key, part in value.items()}
    return value
