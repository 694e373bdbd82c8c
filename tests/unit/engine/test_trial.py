"""A training that is part of a trial, in this process."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch
from torch import nn

from sparsefleet import CheckpointConfig, Trainer, TrainerConfig, optim
from sparsefleet.engine import trial
from sparsefleet.engine.trial import chosen_mode, process_trial
from sparsefleet.errors import ConfigError
from sparsefleet.modes import AsyncConfig
from sparsefleet.nn import SparseEmbeddingBag

BATCH = (torch.tensor([[1, 2], [3, 4]]), torch.tensor([1.0, 0.0]))


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make this process part of a trial of half a second."""
    monkeypatch.setenv("SPARSEFLEET_TRIAL_SECONDS", "0.5")
    monkeypatch.setenv("SPARSEFLEET_TRIAL_DIR", str(tmp_path))
    monkeypatch.setattr(trial, "_process", trial._ProcessTrial())
    return tmp_path / "worker-0.json"


def make_trainer(**settings: object) -> Trainer:
    model = nn.Sequential(SparseEmbeddingBag("ads", 4), nn.Linear(4, 1), nn.Flatten(0))
    config = TrainerConfig(quiet=True)
    return Trainer(model, nn.BCEWithLogitsLoss(), optim.SGD(lr=0.1), config=config, **settings)  # type: ignore[arg-type]


def test_endless_data_ends_in_time_and_later_fits_train_nothing(results: Path) -> None:
    with make_trainer() as trainer:
        history = trainer.fit(lambda: itertools.repeat(BATCH), epochs=100)
        assert len(history.epochs) == 1
        assert history.was_stopped
        assert history.examples > 0
        assert trainer.fit(lambda: itertools.repeat(BATCH), epochs=100).examples == 0
        trainer.evaluate([BATCH])
    found = json.loads(results.read_text())
    seconds, examples, loss_sum = found["points"][-1]
    assert examples == history.examples
    assert 0.4 < seconds < 30
    assert loss_sum > 0
    assert found["evaluated"]["auc"] == 1.0
    assert found["mode"] == "local"


def test_a_trial_writes_no_checkpoint_and_ends_the_script_where_it_would_save(
    results: Path, tmp_path: Path
) -> None:
    place = tmp_path / "checkpoints"
    checkpoints = CheckpointConfig(directory=str(place), every_s=0.05)
    with make_trainer(checkpoints=checkpoints, resume="auto") as trainer:
        trainer.save(tmp_path / "before")  # skipped: nothing was trained
        trainer.fit(lambda: itertools.repeat(BATCH))
        with pytest.raises(SystemExit) as ended:
            trainer.save(tmp_path / "saved")
        assert ended.value.code == 0
    assert not place.exists()
    assert not (tmp_path / "saved").exists()
    assert not (tmp_path / "before").exists()
    assert results.exists()


def test_the_environment_chooses_the_mode_and_keeps_settings_of_the_same_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = AsyncConfig(max_merge=3)
    assert chosen_mode(config, {"SPARSEFLEET_MODE": "async"}) is config
    assert chosen_mode(config, {"SPARSEFLEET_MODE": "sync"}) == "sync"
    assert chosen_mode(None, {}) is None
    with pytest.raises(ConfigError, match="SPARSEFLEET_MODE: mode must be one of"):
        chosen_mode(None, {"SPARSEFLEET_MODE": "fast"})
    monkeypatch.setenv("SPARSEFLEET_MODE", "geo")
    with make_trainer(mode="local") as trainer:
        trainer.fit([BATCH])
        assert trainer.distributed.mode.name == "geo"


@pytest.mark.parametrize("seconds", ["0", "-1", "soon", "nan", "inf"])
def test_a_wrong_number_of_seconds_is_named(monkeypatch: pytest.MonkeyPatch, seconds: str) -> None:
    monkeypatch.setenv("SPARSEFLEET_TRIAL_SECONDS", seconds)
    monkeypatch.setattr(trial, "_process", trial._ProcessTrial())
    with pytest.raises(ConfigError, match="SPARSEFLEET_TRIAL_SECONDS must be a positive number"):
        process_trial()
