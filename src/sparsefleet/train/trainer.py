"""The Trainer: fit, evaluate and predict with an ordinary torch module."""

from __future__ import annotations

import functools
import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import NoneType, TracebackType
from typing import TYPE_CHECKING, Any, Literal, overload

import torch
from torch import Tensor, nn

from sparsefleet import optim
from sparsefleet.data import MemoryData, Reader, RecordFormat, Slot
from sparsefleet.engine.batch_source import BatchSource, Data
from sparsefleet.engine.binding import bind_model
from sparsefleet.engine.clock import advise
from sparsefleet.engine.events import EpochEnded, EvaluatedWithin
from sparsefleet.engine.profiling import Profiler, as_profile
from sparsefleet.engine.save_schedule import CheckpointConfig
from sparsefleet.engine.training import Training
from sparsefleet.engine.training_progress import check_resume
from sparsefleet.engine.trial import chosen_mode
from sparsefleet.errors import ConfigError
from sparsefleet.fleet import Fleet
from sparsefleet.fleet._process import fleet as process_fleet
from sparsefleet.fleet.schedulers import require_alone
from sparsefleet.modes import CollectiveConfig, LocalConfig
from sparsefleet.modes.mode_choice import mode_config, with_strategy
from sparsefleet.serving.updates.publisher import PublishConfig
from sparsefleet.store import Evict, RemoteStore
from sparsefleet.train.callbacks import Callback, CallbackRunner, check_callbacks
from sparsefleet.train.history import Epoch, History, summary_lines, summary_table
from sparsefleet.train.module_workload import Loss, ModuleWorkload, as_batch, as_inputs
from sparsefleet.train.progress import ProgressReporter, make_display, open_tensorboard
from sparsefleet.train.scoring import Metrics, Scorer, export_together, figures_of, predictions_of
from sparsefleet.train.slot_report import SlotReport, evaluate_by_slot
from sparsefleet.train.trainer_config import (
    TrainerConfig,
    check_collective,
    check_config,
    check_trained,
)

if TYPE_CHECKING:
    from typing_extensions import Self

    from sparsefleet.collective import CollectiveStrategy
    from sparsefleet.engine.distributed_model import DistributedModel
    from sparsefleet.engine.rate_schedule import ScheduleLike
    from sparsefleet.modes import ModeConfig
    from sparsefleet.serving.export import ExportManifest, RowFormat
    from sparsefleet.serving.export.hashing import Features
    from sparsefleet.serving.export.recorded_graph import Varying
    from sparsefleet.serving.export.signature import TargetsLike

__all__ = ["Trainer"]

_log = logging.getLogger("sparsefleet.train")


class Trainer:
    """Trains a model with the same script on a laptop or with a fleet of servers and workers.

    model: any module; the rows of each `SparseEmbedding` in it live in the fleet's tables.
    loss: takes (output, labels), returns a scalar; None if the model's output is the loss.
    optimizer: from torch or `sparsefleet.optim`, for the dense parameters and for tables without
        their own optimizer.
    mode: "local", "sync", "half_async", "async", "hybrid", "geo", "collective", or a config of
        `sparsefleet.modes`. None means async with servers; without servers, collective for several
        workers and local for one.
    strategy: how workers exchange dense gradients among themselves, for mode "collective", and
        for "hybrid" with rows on servers; see `CollectiveStrategy`.
    threads: training threads of this process. They share the parameters.
    metrics: for `evaluate` and the progress display; names such as ["auc", "accuracy"], or a dict
        from names to metrics. None means AUC and log loss, if there are two classes.
    schedule: learning rates; a torch scheduler for `optimizer`, or a function from the number of
        steps to a factor.
    fleet: the role of this process in its job; None uses the process's own fleet, initialized from
        the environment unless `init` was called.
    checkpoints: save while training; see `CheckpointConfig`.
    publish: update a served model; see `PublishConfig`.
    resume: "auto" resumes from the newest checkpoint of `checkpoints`, or starts from scratch if
        there is none; a path resumes from that checkpoint. Calls to `fit` that had finished before
        the checkpoint was written return at once.
    callbacks: run while training; see `Callback`. Must be the same on all workers.

    A batch is `(inputs, labels)`: a tensor is passed to the model as its argument, a tuple or list
    as its arguments, a dict as named arguments; `(*inputs, labels)` works too. With `loss=None` the
    whole batch is input. NumPy arrays are converted to tensors. Predictions are the sigmoid of the
    output for BCE with logits, the softmax for cross entropy, and otherwise the output itself.

    In a server process, the first call serves until the job ends and then exits the process, so a
    script needs no branch for its role.

    >>> from sparsefleet.nn import SparseEmbeddingBag
    >>> model = nn.Sequential(SparseEmbeddingBag("ads", 4), nn.Linear(4, 1), nn.Flatten(0))
    >>> optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    >>> batch = (torch.tensor([[1, 2], [3, 4]]), torch.tensor([1.0, 0.0]))
    >>> config = TrainerConfig(quiet=True)
    >>> with Trainer(model, nn.BCEWithLogitsLoss(), optimizer, config=config) as trainer:
    ...     history = trainer.fit([batch] * 20, epochs=2)
    ...     trainer.evaluate([batch])["auc"]
    1.0
    >>> history.examples
    80
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss | None,
        optimizer: torch.optim.Optimizer | optim.Optimizer,
        *,
        mode: str | ModeConfig | None = None,
        strategy: CollectiveStrategy | None = None,
        threads: int = 1,
        config: TrainerConfig | None = None,
        metrics: Metrics | None = None,
        schedule: ScheduleLike | None = None,
        fleet: Fleet | None = None,
        checkpoints: CheckpointConfig | None = None,
        publish: PublishConfig | None = None,
        resume: str | os.PathLike[str] | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        check_trained(model, loss, threads)
        check_config(config)
        check_resume(resume, checkpoints)
        self._callbacks = check_callbacks(callbacks)
        self.config = config or TrainerConfig()
        self.model = model
        self._loss = loss
        self._scorer = Scorer(loss, metrics, self.config)
        mode = chosen_mode(with_strategy(mode, strategy))
        chosen = None if mode is None else mode_config(mode)  # makes a wrong name raise here
        check_collective(chosen, self.config)
        self._fleet = process_fleet if fleet is None else fleet
        if not self._fleet.is_initialized:
            self._fleet.init(is_collective=isinstance(chosen, CollectiveConfig))
            is_shared = not isinstance(chosen, (CollectiveConfig, LocalConfig, NoneType))
            if is_shared and self._fleet.role.kind == "local":
                require_alone()
        self._training: Training[DistributedModel] | None = None
        self.figure_names: set[str] = set()
        """Names of what the last `fit` may compute: "loss" and metrics on the validation data, if
        there is any, and with the prefix "train_" on the training data.
        """
        self._description: RecordFormat | tuple[Slot, ...] | None = None
        """How the data of the last `fit` was read, if known."""
        self._uncalled: Callable[[], Any] | None = None
        """The data function of the last `fit` if nothing was left to train on: only its result can
        tell how data is read.
        """
        if self._fleet.is_server():
            return
        distributed = bind_model(
            self._fleet,
            model,
            optimizer,
            mode,
            threads=threads,
            schedule=schedule,
            track_dirty=checkpoints is not None and checkpoints.deltas_between_fulls > 0,
            wire_dtype=self.config.wire_dtype,
        )
        self._training = Training(
            distributed,
            ModuleWorkload(distributed, loss, self.config),
            self.config.loop(),
            checkpoints=checkpoints,
            publish=publish,
            resume=resume,
        )

    # -- life ---------------------------------------------------------------------------------

    @property
    def distributed(self) -> DistributedModel:
        """Return the model as bound to the fleet, with its store, mode and replicas.

        Not available in a server process.
        """
        return self._worker().distributed

    def close(self) -> None:
        """Apply all pending updates and close connections.

        Tables in this process stay with the model, which still predicts, has a `state_dict`, and
        may be passed to a new trainer. Finally raises CheckpointError or PublishError if the last
        save or update failed; earlier failures are in the log.
        """
        if self._training is not None:
            self._training.close()
            self._training.raise_last_error()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        elif self._training is not None:  # the exception from the block is more informative
            self._training.close_after(error)

    # -- work ---------------------------------------------------------------------------------

    def fit(self, data: Data, epochs: int = 1, *, validation: Data | None = None) -> History:
        """Train on `data`, which is this worker's part, for `epochs` epochs.

        data: an iterable of batches, or a function that returns an iterator for each epoch. All
            threads share one iterator.
        validation: evaluated after each epoch, by all workers together; with
            `TrainerConfig(validate_every_steps=...)` also within epochs.

        Returns when all updates are applied and the model has the store's parameters.
        """
        if not isinstance(epochs, int) or epochs < 1:
            raise ConfigError(f"epochs must be an int >= 1, got {epochs!r}")
        every_steps = self.config.validate_every_steps
        if every_steps is not None and validation is None:
            raise ConfigError(
                f"TrainerConfig.validate_every_steps is {every_steps}, but fit got no validation "
                "data: pass fit(..., validation=...), or leave it as None"
            )
        training = self._begin()
        source = self._source(data, passes=epochs)
        passes = epochs if every_steps is None else max(epochs, 2)  # more than one
        held_out = None
        if validation is not None:
            held_out = self._source(validation, passes=passes, argument="validation")
            if training.distributed.role.worker_num == 1:  # other workers may have examples
                held_out.require_batches()
        self.figure_names = {f"train_{name}" for name in self._scorer.train_names}
        if held_out is not None:
            self.figure_names.update(self._scorer.names)
        distributed = training.distributed
        tensorboard = open_tensorboard(self.config.tensorboard, distributed.role)
        display = make_display(quiet=self.config.quiet, log_interval_s=self.config.log_interval_s)
        reporter = ProgressReporter(
            distributed,
            self._scorer,
            display,
            log_interval_s=self.config.log_interval_s,
            tensorboard=tensorboard,
        )
        training.metrics.figures = reporter.figures
        evaluate = None if held_out is None else functools.partial(self._evaluate, held_out)
        history = History()
        try:
            with training.events.temporary():
                reporter.attach(training.events)
                profile = as_profile(self.config.profile)
                if profile is not None:
                    Profiler(profile, distributed).attach(training.events)
                training.events.subscribe(EvaluatedWithin, history.validations.append)
                self._attach_callbacks(training, reporter)
                results = training.fit(
                    source,
                    epochs,
                    evaluate,
                    evaluate_every_steps=every_steps,
                    may_stop=self._may_stop,
                )
            history.was_stopped = training.was_stopped
            for result in results:
                history.epochs.append(Epoch.of(result, reporter.last[result.epoch].metrics))
                history.time_shares += result.time_shares
            if history.epochs:
                is_local = not isinstance(distributed.store, RemoteStore)
                history.bottleneck = advise(history.time_shares, history.reading, is_local=is_local)
                if not history.steps and training.progress.resumed_from is not None:
                    history.bottleneck = "no batch was left to train on after the checkpoint"
                display.close()
                for line in summary_lines(history):
                    display.note(line)
                display.table(lambda: summary_table(history))
        finally:
            opened = source.opened
            self._description = _description_of(opened)
            self._uncalled = None if isinstance(opened, Iterable) else opened
            reporter.stop()
            display.close()
            if tensorboard is not None:
                tensorboard.close()
        return history

    def stop(self) -> None:
        """Stop `fit` after the current epoch, or after the next validation within it
        (`TrainerConfig.validate_every_steps`), on all workers. Any thread may call it.

        Does nothing outside of `fit`. Workers with callbacks agree after each epoch whether to
        stop; several workers without callbacks raise ConfigError.
        """
        training = self._worker()
        if not self._may_stop:
            raise ConfigError(
                "Trainer.stop(): several workers can stop together only if they have callbacks; "
                "pass callbacks=[Callback()] on all workers"
            )
        training.request_stop()

    @property
    def epochs_done(self) -> int:
        """Return the number of epochs finished in the current or last `fit`.

        Epochs finished before resuming are included.
        """
        return self._worker().progress.epoch

    @overload
    def evaluate(self, data: Data, *, by: None = None) -> dict[str, float]: ...

    @overload
    def evaluate(self, data: Data, *, by: Literal["slot"]) -> SlotReport: ...

    def evaluate(self, data: Data, *, by: str | None = None) -> dict[str, float] | SlotReport:
        """Return "loss" and the metrics over the data of all workers, the same on every worker.

        Must be called by all workers, each with its own part of the data. Rows are read but not
        created.

        by: with "slot", return a `SlotReport` instead. It contains the importance of each input,
            found by shuffling the input across examples, as well as calibration and metrics on
            slices. The data is held in memory and evaluated once, plus once per slot; `write_html`
            writes the report as a page.
        """
        if by not in (None, "slot"):
            raise ConfigError(f"by must be None or 'slot', got {by!r}")
        distributed = self._begin().distributed
        distributed.settle()
        if by is None:
            figures = self._evaluate(self._source(data))
            if (trial := self._worker().trial) is not None:
                trial.evaluated(figures)
            return figures
        self._require_predictions()
        return evaluate_by_slot(
            list(data() if callable(data) else data),
            lambda batches: self._evaluate(self._source(batches)),
            self.predict,
            distributed.meeting,
        )

    def predict(self, data: Data, *, labelled: bool = True) -> Tensor:
        """Return predictions for this worker's `data`, in the order of batches: float[N] or [N, C].

        labelled: whether batches have labels, as for `fit`; labels are ignored. If False, the whole
            batch is input. A dict or a single tensor is always treated as input.
        """
        self._require_predictions()
        training = self._begin()
        training.distributed.flush()
        source = BatchSource(data, functools.partial(as_inputs, labelled=labelled))
        return predictions_of(training, self._scorer, source)

    def save(
        self, directory: str | os.PathLike[str], *, notes: Mapping[str, Any] | None = None
    ) -> None:
        """Write the model, tables, optimizer state and training position, once for the job.

        Must be called by all workers. Returns when the checkpoint is committed; only then is an
        existing checkpoint in the directory replaced. If the checkpoint could not be written,
        raises an error on all workers.

        notes: your own JSON, stored in the manifest under "user".
        """
        self._begin().save(directory, notes)

    def load(self, directory: str | os.PathLike[str]) -> None:
        """Load a checkpoint written by `save`, with any number of servers and workers.

        Must be called by all workers. The training position is not restored, so the next `fit`
        starts with its first batch. To resume within an epoch, pass `resume=`.
        """
        self._begin().load(directory)

    def shrink(self) -> dict[str, int]:
        """Remove the rows that each table's `eviction` rule selects; return their number by table.

        Must be called by all workers, between calls to `fit` or between epochs (in a callback's
        `on_epoch_end`).
        """
        distributed = self._begin().distributed
        distributed.flush()
        tables = [name for name, spec in distributed.tables.items() if spec.eviction != Evict()]

        def remove(_: list[bytes]) -> bytes:
            return json.dumps({name: distributed.store.shrink(name) for name in tables}).encode()

        answer = distributed.meeting.decide(b"", remove, patient=True)
        return {} if answer is None else dict(json.loads(answer))

    def export(
        self,
        directory: str | os.PathLike[str],
        example_batch: Any,
        feeds: Sequence[str] | None = None,
        targets: TargetsLike = None,
        *,
        labelled: bool = True,
        rows: RowFormat = "float32",
        golden: Any = None,
        onnx: bool | None = None,
        varying: Varying | None = None,
        features: Features | None = None,
    ) -> ExportManifest | None:
        """Write the files that `sparsefleet.Predictor` needs for prediction.

        Must be called by all workers. The arguments are the same as for
        `serving.export.save_inference_model`; the first remaining worker writes and gets the
        manifest. Batches, including `golden`, have the form that `fit` takes; if `labelled` is
        False, the whole batch is input. The default target is the result of `predict`, named
        "prediction"; the default `features` is the format of the `Reader` or `MemoryData` of the
        last `fit`, even if a function returned it.
        """
        from sparsefleet.serving.export.model_export import save_inference_model

        if targets is None:
            self._require_predictions()
        training = self._begin()
        distributed = training.distributed
        if training.trial is not None and training.trial.refuse("export"):
            return None
        is_labelled = labelled and self._loss is not None

        def inputs_of(raw: Any) -> Any:
            return None if raw is None else as_inputs(raw, 1, labelled=is_labelled).inputs

        def write() -> ExportManifest:
            return save_inference_model(
                directory,
                self.model,
                inputs_of(example_batch),
                feeds=feeds,
                targets=self._named_prediction if targets is None else targets,
                store=distributed.store,
                rows=rows,
                golden=inputs_of(golden),
                onnx=onnx,
                varying=varying,
                features=self._description_of_fit() if features is None else features,
            )

        return export_together(distributed, directory, write)

    # -- inside -------------------------------------------------------------------------------

    @property
    def _may_stop(self) -> bool:
        """Return whether `fit` checks after each epoch if it should stop; equal on all workers."""
        return bool(self._callbacks) or self._fleet.worker_num() == 1

    def _description_of_fit(self) -> RecordFormat | tuple[Slot, ...] | None:
        """Return how the last `fit` read its records, or None if its data was not read by us."""
        return self._description if self._uncalled is None else _description_of(self._uncalled())

    def _worker(self) -> Training[DistributedModel]:
        if self._training is None:
            raise ConfigError(
                "this process is a server and has no model: use `distributed` only in workers"
            )
        return self._training

    def _begin(self) -> Training[DistributedModel]:
        """Start training; does not return in a server process."""
        if self._fleet.is_server():
            self._fleet.run_server()
            raise SystemExit(0)
        training = self._worker()
        training.begin()
        return training

    def _attach_callbacks(
        self, training: Training[DistributedModel], reporter: ProgressReporter
    ) -> None:
        def epoch_of(event: EpochEnded) -> Epoch:
            return Epoch.of(event.result, reporter.last[event.result.epoch].metrics)

        CallbackRunner(self, self._callbacks, epoch_of).attach(training.events)

    def _source(self, data: Data, *, passes: int = 1, argument: str = "data") -> BatchSource:
        read = functools.partial(as_batch, labelled=self._loss is not None)
        return BatchSource(data, read, passes=passes, argument=argument)

    def _evaluate(self, source: BatchSource) -> dict[str, float]:
        training = self._worker()
        figures = figures_of(training, self._scorer, source, self._loss)
        figures = figures.of_all(training.distributed.meeting)
        if not figures.examples and training.distributed.role.is_first_worker:
            _log.warning("evaluated no examples, because the data had none: every figure is nan")
        return figures.compute()

    def _require_predictions(self) -> None:
        if self._loss is None and self.config.predictions is None:
            raise ConfigError(
                "with loss=None the model's output is the loss, which is not a prediction: call "
                "the module that predicts, or set TrainerConfig(predictions=...)"
            )

    def _named_prediction(self, output: Any) -> dict[str, Tensor]:
        return {"prediction": self._scorer.predictions(output)}


def _description_of(data: object) -> RecordFormat | tuple[Slot, ...] | None:
    if isinstance(data, Reader):
        return data.format.description
    return data.description if isinstance(data, MemoryData) else None
