"""The Trainer: fit, evaluate and predict with an ordinary torch module."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sparsefleet import optim
from sparsefleet.errors import ConfigError
from sparsefleet.fleet import Fleet
from sparsefleet.fleet import fleet as process_fleet
from sparsefleet.metrics import Metric
from sparsefleet.modes import CollectiveConfig, mode_config, with_strategy
from sparsefleet.store import RemoteStore
from sparsefleet.train.background_writers import BackgroundWriters
from sparsefleet.train.batch import as_batch
from sparsefleet.train.batch_source import BatchSource, Data
from sparsefleet.train.checkpoint_config import CheckpointConfig
from sparsefleet.train.export_together import export_together
from sparsefleet.train.history import History
from sparsefleet.train.inference import Inference
from sparsefleet.train.progress import ProgressDisplay, make_display
from sparsefleet.train.progress_reporter import ProgressReporter
from sparsefleet.train.resume import check_resume, resume_training
from sparsefleet.train.save_together import save_together
from sparsefleet.train.scoring import Scorer
from sparsefleet.train.summary import summary_lines, summary_table
from sparsefleet.train.tensorboard_log import open_tensorboard
from sparsefleet.train.time_shares import advise
from sparsefleet.train.trainer_checks import check_collective, check_trained
from sparsefleet.train.trainer_config import TrainerConfig
from sparsefleet.train.training_pass import TrainingPass
from sparsefleet.train.training_place import TrainingPlace
from sparsefleet.train.training_stops import TrainingStops
from sparsefleet.updates.publish_config import PublishConfig

if TYPE_CHECKING:
    from typing_extensions import Self

    from sparsefleet.collective import CollectiveStrategy
    from sparsefleet.export import Manifest, RowFormat
    from sparsefleet.export.recorded_graph import Varying
    from sparsefleet.export.targets import TargetsLike
    from sparsefleet.fleet.distributed_model import DistributedModel
    from sparsefleet.fleet.rate_schedule import ScheduleLike
    from sparsefleet.modes import ModeConfig

__all__ = ["Trainer"]

_log = logging.getLogger("sparsefleet.train")

Loss = Callable[[Any, Any], Tensor]


class Trainer:
    """Trains a model, here or in a fleet of servers and workers: the script is the same.

    model: any module; a `SparseEmbedding` in it lives in the fleet's tables.
    loss: takes (output, labels), gives a scalar; None if the model's output is the loss.
    optimizer: of torch or of `sparsefleet.optim`, for the dense parameters and for tables that
        have none of their own.
    mode: "local", "sync", "half_async", "async", "hybrid", "geo", "collective", or a config of
        `sparsefleet.modes`; None: async with servers, else local, with many workers collective.
    strategy: how workers exchange dense gradients among themselves, for mode "collective", and
        for "hybrid" with rows on servers; see `CollectiveStrategy`.
    threads: training threads of this process. They share the parameters.
    metrics: by name, for `evaluate`; None is AUC and log loss where there are two classes.
    schedule: learning rates; a scheduler of torch for `optimizer`, or a function from the number
        of steps to a factor.
    fleet: what this process is in its job; None is the one of the process, found out from the
        environment if nobody has called its `init`.
    checkpoints: save while training; see `CheckpointConfig`.
    publish: update a model that is served; see `PublishConfig`.
    resume: "auto" goes on from the newest checkpoint of `checkpoints`, or begins where there is
        none; a path, from that one. Calls of `fit` that it has behind it return at once.

    A batch is `(inputs, labels)`: a tensor goes to the model as its argument, a tuple or list as
    its arguments, a dict as named ones; `(*inputs, labels)` does as well. With `loss=None` all of
    the batch is input. NumPy arrays are taken as tensors. Predictions are the sigmoid of the
    output for BCE with logits, the softmax for cross entropy, and else the output itself.

    In a server process the first call serves until the job ends, and then ends the process: a
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
        metrics: Mapping[str, Metric] | None = None,
        schedule: ScheduleLike | None = None,
        fleet: Fleet | None = None,
        checkpoints: CheckpointConfig | None = None,
        publish: PublishConfig | None = None,
        resume: str | os.PathLike[str] | None = None,
    ) -> None:
        check_trained(model, loss, threads)
        check_resume(resume, checkpoints)
        self.config = config or TrainerConfig()
        self.model = model
        self._loss = loss
        self._scorer = Scorer(loss, metrics, self.config)
        mode = with_strategy(mode, strategy)
        chosen = None if mode is None else mode_config(mode)  # so that a wrong name is told here
        check_collective(chosen, self.config)
        self._fleet = process_fleet if fleet is None else fleet
        if not self._fleet.is_initialized:
            self._fleet.init(is_collective=isinstance(chosen, CollectiveConfig))
        self._distributed: DistributedModel | None = None
        if not self._fleet.is_server():
            self._distributed = self._fleet.distribute(
                model,
                optimizer,
                mode,
                threads=threads,
                schedule=schedule,
                track_dirty=checkpoints is not None and checkpoints.deltas_between_fulls > 0,
            )
        self._checkpoints = checkpoints
        self._publish = publish
        self._resume = resume
        self._place = TrainingPlace()
        self._writers: BackgroundWriters | None = None
        self._all_left = False
        self._closed = False

    # -- life ---------------------------------------------------------------------------------

    @property
    def distributed(self) -> DistributedModel:
        """The model as the fleet has it: its store, mode and replicas. Not in a server."""
        if self._distributed is None:
            raise ConfigError("this process is a server: it has no model")
        return self._distributed

    def close(self) -> None:
        """Everything handed over is applied and connections end.

        Tables in this process stay with the model: it predicts, has a `state_dict`, and may be
        given to another trainer. Raises CheckpointError or PublishError, after all that, if the
        last save or update failed; earlier failures are in the log.
        """
        self._close()
        if self._writers is not None:
            self._writers.raise_last_error()

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
        else:  # what the block raised says more
            self._close()

    # -- work ---------------------------------------------------------------------------------

    def fit(self, data: Data, epochs: int = 1, *, validation: Data | None = None) -> History:
        """Trains on `data`, this worker's own part of it, `epochs` times.

        data: an iterable of batches, or a function that returns an iterator for each epoch. All
            threads take from one iterator.
        validation: evaluated after each epoch, by all workers together.

        Returns when everything is applied and the model has the parameters of the store.
        """
        if not isinstance(epochs, int) or epochs < 1:
            raise ConfigError(f"epochs must be an int >= 1, got {epochs!r}")
        distributed = self._begin()
        if not self._place.begin_fit():
            _log.info("fit %d was over when the checkpoint was made", self._place.fit)
            return History()
        labelled = self._loss is not None
        source = BatchSource(data, passes=epochs, labelled=labelled)
        held_out = None
        if validation is not None:
            held_out = BatchSource(validation, passes=epochs, labelled=labelled)
        tensorboard = open_tensorboard(self.config.tensorboard, distributed.role)
        display = make_display(quiet=self.config.quiet, log_interval_s=self.config.log_interval_s)
        reporter = ProgressReporter(
            distributed,
            self._scorer,
            display,
            log_interval_s=self.config.log_interval_s,
            tensorboard=tensorboard,
        )
        stops = self._begin_stops(distributed)
        try:
            return self._fit(source, held_out, epochs, reporter, display, stops)
        finally:
            if stops is not None:
                stops.close()
            reporter.stop()
            display.close()
            if tensorboard is not None:
                tensorboard.close()

    def evaluate(self, data: Data) -> dict[str, float]:
        """ "loss" and the metrics over the data of all workers; the same figures on every worker.

        All workers must call it, each with its own part of the data. Rows are read, none created.
        """
        self._begin().settle()
        return self._evaluate(BatchSource(data, labelled=self._loss is not None))

    def predict(self, data: Data, *, labelled: bool = True) -> Tensor:
        """Predictions for `data` of this worker, in the order of its batches: float[N] or [N, C].

        labelled: batches have labels, as for `fit`; they are not looked at. False: a batch is
            all input.
        """
        self._require_predictions()
        distributed = self._begin()
        distributed.flush()
        inference = Inference(distributed, self._scorer, self.config)
        return inference.predictions(BatchSource(data, labelled=labelled))

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Writes model, tables, optimizer state and where the training is, once for the job.

        All workers call it; it returns when the checkpoint is in force, and raises on all workers
        if it could not be written. What was there before stays in force until then.
        """
        save_together(self._begin(), directory, self._place)

    def load(self, directory: str | os.PathLike[str]) -> None:
        """Takes up what `save` wrote, at any number of servers and workers. All workers call it.

        Where the training was is not taken up: the next `fit` begins with its first batch. To go
        on within an epoch give `resume=`.
        """
        self._begin().load(directory)
        self._all_left = False

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
    ) -> Manifest | None:
        """Writes what prediction needs, for `sparsefleet.Predictor`. All workers call it.

        As `sparsefleet.export.save_inference_model`; the first worker writes, and gets the
        manifest. A batch, also of `golden`, is as for `fit`, or all input without `labelled`.
        Unless `targets` says otherwise, the target is what `predict` gives: "prediction".
        """
        from sparsefleet.export.model_export import save_inference_model

        if targets is None:
            self._require_predictions()
        distributed = self._begin()
        is_labelled = labelled and self._loss is not None

        def inputs_of(raw: Any) -> Any:
            return None if raw is None else as_batch(raw, 1, labelled=is_labelled).inputs

        def write() -> Manifest:
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
            )

        return export_together(distributed, directory, write)

    # -- inside -------------------------------------------------------------------------------

    def _begin(self) -> DistributedModel:
        """The model, started; does not return in a server."""
        if self._fleet.is_server():
            self._fleet.run_server()
            raise SystemExit(0)
        if self._closed:
            raise ConfigError("this trainer is closed: make another")
        distributed = self.distributed
        if not distributed.is_started:
            distributed.start()
            self._all_left = False
        if self._resume is not None:
            resumed = resume_training(
                distributed, self._resume, self._checkpoints, quiet=self.config.quiet
            )
            self._resume = None  # not before: who tries again must not begin from the start
            if resumed is not None:
                self._place.take_up(resumed)
        return distributed

    def _close(self) -> None:
        self._closed = True
        if self._writers is not None:
            self._writers.close()
        if self._distributed is not None:
            self._distributed.close()

    def _begin_stops(self, distributed: DistributedModel) -> TrainingStops | None:
        if self._checkpoints is None and self._publish is None:
            return None
        if self._writers is None:
            self._writers = BackgroundWriters(distributed, self._checkpoints, self._publish)
        return TrainingStops(distributed, self._place, self._writers)

    def _fit(
        self,
        source: BatchSource,
        held_out: BatchSource | None,
        epochs: int,
        reporter: ProgressReporter,
        display: ProgressDisplay,
        stops: TrainingStops | None,
    ) -> History:
        distributed = self.distributed
        history = History()
        for number in range(self._place.epoch + 1, epochs + 1):
            if self._all_left:
                distributed.rejoin()
            source.reading.begin()
            this_pass = TrainingPass(
                distributed, self._loss, self.config, epoch=number, epochs=epochs
            )
            epoch, shares = this_pass.run(source, reporter, place=self._place, stops=stops)
            self._all_left = True
            if stops is None:
                self._place.end_epoch()
            else:
                stops.end_pass(is_last=number == epochs)
            if held_out is None:
                distributed.flush()
            else:
                distributed.settle()
                figures = self._evaluate(held_out)
                reporter.show_validation(number, epochs, figures)
                epoch = replace(epoch, validation=figures)
            history.epochs.append(epoch)
            history.time_shares += shares
        is_local = not isinstance(distributed.store, RemoteStore)
        history.bottleneck = advise(history.time_shares, history.reading, is_local=is_local)
        display.close()
        for line in summary_lines(history):
            display.note(line)
        display.table(lambda: summary_table(history))
        return history

    def _evaluate(self, source: BatchSource) -> dict[str, float]:
        inference = Inference(self.distributed, self._scorer, self.config)
        figures = inference.figures(source, self._loss)
        return figures.of_all(self.distributed.meeting).compute()

    def _require_predictions(self) -> None:
        if self._loss is None and self.config.predictions is None:
            raise ConfigError(
                "with loss=None the model's output is the loss, which predicts nothing: call the "
                "module that predicts, or give TrainerConfig(predictions=...)"
            )

    def _named_prediction(self, output: Any) -> dict[str, Tensor]:
        return {"prediction": self._scorer.predictions(output)}
