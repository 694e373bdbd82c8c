"""Callbacks that record a training run in CSV files, MLflow or Weights & Biases."""

from __future__ import annotations

import csv
import logging
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparsefleet.engine.events import Saved
from sparsefleet.errors import ConfigError
from sparsefleet.train.callbacks import Callback
from sparsefleet.train.history import Epoch

if TYPE_CHECKING:
    from sparsefleet.train.trainer import Trainer

__all__ = ["CsvLogger", "MlflowLogger", "WandbLogger"]

_log = logging.getLogger("sparsefleet.train")


def metrics_of(epoch: Epoch) -> dict[str, float]:
    """Return an epoch's loss, metrics, counts and speed by name, without non-finite values."""
    found = {
        "train_loss": epoch.loss,
        **{f"train_{name}": value for name, value in epoch.metrics.items()},
        **{f"validation_{name}": value for name, value in (epoch.validation or {}).items()},
        "examples": float(epoch.examples),
        "steps": float(epoch.steps),
        "skipped_steps": float(epoch.skipped),
        "seconds": epoch.seconds,
        "examples_per_s": epoch.examples_per_s,
    }
    return {name: float(value) for name, value in found.items() if math.isfinite(value)}


def settings_of(trainer: Trainer, epochs: int) -> dict[str, str | int | float]:
    """Return the hyper-parameters that the trainer knows, by name."""
    distributed = trainer.distributed
    found: dict[str, str | int | float] = {
        "model": type(trainer.model).__name__,
        "mode": distributed.mode.name,
        "workers": distributed.role.worker_num,
        "threads": distributed.threads,
        "epochs": epochs,
    }
    for table, rate in distributed.learning_rates().items():
        found[f"learning_rate.{table}"] = rate
    for name, spec in distributed.tables.items():
        found[f"dim.{name}"] = spec.dim
    return found


class _Recorder(Callback):
    """Base class of loggers: the first worker records; a recording error does not stop training."""

    def __init__(self, params: Mapping[str, Any] | None) -> None:
        self._params = dict(params or {})
        self._is_open = False

    def on_fit_begin(self, trainer: Trainer, epochs: int) -> None:
        if trainer.distributed.role.is_first_worker and not self._is_open:
            self._open({**settings_of(trainer, epochs), **self._params})
            self._is_open = True

    def on_epoch_end(self, trainer: Trainer, epoch: Epoch) -> None:
        del trainer
        if self._is_open:
            self._write(epoch.number, metrics_of(epoch))

    def on_save(self, trainer: Trainer, saved: Saved) -> None:
        del trainer
        if self._is_open:
            self._keep(saved)

    def on_error(self, trainer: Trainer, error: BaseException) -> None:
        del trainer
        if self._is_open:
            self._is_open = False
            self._close(f"{type(error).__name__}: {error}")

    def on_fit_end(self, trainer: Trainer, epochs: int) -> None:
        del trainer, epochs
        if self._is_open:
            self._is_open = False
            self._close("")

    def _open(self, params: Mapping[str, Any]) -> None:
        raise NotImplementedError

    def _write(self, epoch: int, metrics: Mapping[str, float]) -> None:
        raise NotImplementedError

    def _keep(self, saved: Saved) -> None:
        """Record that a checkpoint was saved."""
        del saved

    def _close(self, error: str) -> None:
        """Finish the record; `error` says why training failed, or is empty."""


class CsvLogger(_Recorder):
    """Writes one line per epoch to a CSV file; the first worker writes it.

    The first epoch determines the columns. A resumed run appends to an existing file if the file
    has the same columns, and replaces the file if it does not.

    >>> CsvLogger("log.csv").path
    'log.csv'
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(None)
        self.path = os.fspath(path)
        self._columns: list[str] = []

    def _open(self, params: Mapping[str, Any]) -> None:
        del params
        self._columns = []

    def _write(self, epoch: int, metrics: Mapping[str, float]) -> None:
        row = {"epoch": epoch, **metrics}
        if not self._columns:
            self._columns = list(row)
            if epoch == 1 or self._header() != self._columns:
                with open(self.path, "w", newline="", encoding="utf-8") as file:
                    csv.writer(file).writerow(self._columns)
        with open(self.path, "a", newline="", encoding="utf-8") as file:
            csv.writer(file).writerow([row.get(name, "") for name in self._columns])

    def _header(self) -> list[str]:
        try:
            with open(self.path, newline="", encoding="utf-8") as file:
                return next(csv.reader(file), [])
        except OSError:
            return []


class MlflowLogger(_Recorder):
    """Records a training run in MLflow; requires the `mlflow` extra.

    experiment: the name of the experiment, created if it does not exist.
    tracking_uri: where MLflow keeps the run; None uses MLFLOW_TRACKING_URI, or MLflow's default.
    params: your own hyper-parameters, in addition to mode, workers, threads and learning rates.
    upload_checkpoints: copy checkpoint files to MLflow. If False, record only their location.
    """

    def __init__(
        self,
        experiment: str = "sparsefleet",
        *,
        tracking_uri: str | None = None,
        run_name: str | None = None,
        params: Mapping[str, Any] | None = None,
        upload_checkpoints: bool = False,
    ) -> None:
        super().__init__(params)
        try:
            from mlflow import MlflowClient
        except ImportError as error:
            raise ConfigError(
                f"MlflowLogger requires the mlflow package; run `pip install sparsefleet[mlflow]`: "
                f"{error}"
            ) from error
        self._client: Any = MlflowClient(tracking_uri)
        self._experiment = experiment
        self._run_name = run_name
        self._uploads = upload_checkpoints
        self.run_id = ""
        """The ID of the run, once `fit` has started in the first worker."""

    def _open(self, params: Mapping[str, Any]) -> None:
        found = self._client.get_experiment_by_name(self._experiment)
        number = (
            self._client.create_experiment(self._experiment)
            if found is None
            else found.experiment_id
        )
        self.run_id = self._client.create_run(number, run_name=self._run_name).info.run_id
        for name, value in params.items():
            self._client.log_param(self.run_id, name, value)

    def _write(self, epoch: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._client.log_metric(self.run_id, name, value, step=epoch)

    def _keep(self, saved: Saved) -> None:
        self._client.set_tag(self.run_id, "checkpoint", saved.path)
        self._client.set_tag(self.run_id, "checkpoint_step", str(saved.step))
        if self._uploads:
            name = os.path.basename(saved.path.rstrip("/"))
            self._client.log_artifacts(self.run_id, saved.path, f"checkpoints/{name}")

    def _close(self, error: str) -> None:
        if error:
            self._client.set_tag(self.run_id, "error", error[:500])
        self._client.set_terminated(self.run_id, "FAILED" if error else "FINISHED")


class WandbLogger(_Recorder):
    """Records a training run in Weights & Biases; requires the `wandb` extra.

    project, name: the project and the name of the run.
    mode: "online", "offline" or "disabled"; None uses WANDB_MODE.
    directory: where W&B keeps its local files.
    params: your own hyper-parameters, in addition to mode, workers, threads and learning rates.
    upload_checkpoints: copy checkpoint files to W&B. If False, record only their location.
    """

    def __init__(
        self,
        project: str = "sparsefleet",
        *,
        name: str | None = None,
        mode: str | None = None,
        directory: str | os.PathLike[str] | None = None,
        params: Mapping[str, Any] | None = None,
        upload_checkpoints: bool = False,
    ) -> None:
        super().__init__(params)
        try:
            import wandb
        except ImportError as error:
            raise ConfigError(
                "WandbLogger requires the wandb package; run `pip install sparsefleet[wandb]`: "
                f"{error}"
            ) from error
        self._wandb: Any = wandb
        self._settings = {"project": project, "name": name, "mode": mode}
        self._directory = None if directory is None else os.fspath(directory)
        self._uploads = upload_checkpoints
        self.run: Any = None
        """The run, while `fit` is running in the first worker."""

    def _open(self, params: Mapping[str, Any]) -> None:
        self.run = self._wandb.init(
            **self._settings, dir=self._directory, config=dict(params), reinit="create_new"
        )

    def _write(self, epoch: int, metrics: Mapping[str, float]) -> None:
        self.run.log({"epoch": epoch, **metrics}, step=epoch)

    def _keep(self, saved: Saved) -> None:
        artifact = self._wandb.Artifact("checkpoint", type="model", metadata={"step": saved.step})
        if self._uploads:
            artifact.add_dir(saved.path)
        else:
            path = saved.path
            url = path if "://" in path else Path(path).resolve().as_uri()
            artifact.add_reference(url, checksum=False)
        self.run.log_artifact(artifact)

    def _close(self, error: str) -> None:
        if error:
            self.run.summary["error"] = error[:500]
        self.run.finish(exit_code=1 if error else 0)
        self.run = None
