"""Loggers: what they leave behind after a training, locally."""

from __future__ import annotations

import csv
import importlib.util
import os
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

from sparsefleet.errors import ConfigError
from sparsefleet.nn import SparseEmbeddingBag
from sparsefleet.train import (
    Callback,
    CheckpointConfig,
    CsvLogger,
    MlflowLogger,
    Trainer,
    TrainerConfig,
    WandbLogger,
)

BATCH = (torch.tensor([[1, 2], [3, 4]]), torch.tensor([1.0, 0.0]))


def train(*callbacks: Callback, directory: Path | None = None, epochs: int = 2) -> None:
    model = nn.Sequential(SparseEmbeddingBag("ads", 4), nn.Linear(4, 1), nn.Flatten(0))
    saves = None if directory is None else CheckpointConfig(directory=directory)
    with Trainer(
        model,
        nn.BCEWithLogitsLoss(),
        torch.optim.Adagrad(model.parameters(), lr=0.25),
        config=TrainerConfig(quiet=True),
        checkpoints=saves,
        callbacks=callbacks,
    ) as trainer:
        trainer.fit([BATCH] * 5, epochs=epochs, validation=[BATCH])


def test_csv_has_a_line_for_each_epoch(tmp_path: Path) -> None:
    train(CsvLogger(tmp_path / "log.csv"))
    with open(tmp_path / "log.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["1", "2"]
    assert float(rows[1]["validation_auc"]) == 1.0
    assert float(rows[0]["train_loss"]) > float(rows[1]["train_loss"])
    train(CsvLogger(tmp_path / "log.csv"), epochs=1)
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 2


@pytest.mark.parametrize(("module", "kind"), [("mlflow", MlflowLogger), ("wandb", WandbLogger)])
def test_a_missing_package_is_named_with_its_extra(
    module: str, kind: type[Callback], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=rf"pip install sparsefleet\[{module}\]"):
        kind()


@pytest.mark.skipif(
    importlib.util.find_spec("mlflow") is None, reason="pip install sparsefleet[mlflow]"
)
@pytest.mark.slow
def test_mlflow_has_parameters_metrics_and_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logger = MlflowLogger(
            "clicks",
            tracking_uri=(tmp_path / "runs").as_uri(),
            params={"features": 2},
            upload_checkpoints=True,
        )
        train(logger, directory=tmp_path / "saves")
        from mlflow import MlflowClient

        client = MlflowClient((tmp_path / "runs").as_uri())
        run = client.get_run(logger.run_id)
        kept = client.list_artifacts(logger.run_id, "checkpoints")
        history = client.get_metric_history(logger.run_id, "validation_auc")
    assert run.info.status == "FINISHED"
    assert run.data.params["features"] == "2"
    assert run.data.params["mode"] == "local"
    assert run.data.params["learning_rate.ads"] == "0.25"
    assert [each.value for each in history] == [1.0, 1.0]
    assert os.path.exists(run.data.tags["checkpoint"])
    assert os.path.basename(run.data.tags["checkpoint"]) in kept[-1].path


@pytest.mark.skipif(
    importlib.util.find_spec("wandb") is None, reason="pip install sparsefleet[wandb]"
)
@pytest.mark.slow
def test_wandb_records_offline(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logger = WandbLogger(
            mode="offline", directory=tmp_path, params={"features": 2}, upload_checkpoints=True
        )
        train(logger, directory=tmp_path / "saves")
    runs = list((tmp_path / "wandb").glob("offline-run-*"))
    assert len(runs) == 1
    assert logger.run is None
    records = next(runs[0].glob("*.wandb")).read_bytes()
    assert b"validation_auc" in records
    assert b"features" in records
