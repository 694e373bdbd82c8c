from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tests.unit.train.click_model import Clicks, clicks, trainer_of

from sparsefleet.errors import ConfigError
from sparsefleet.train import TrainerConfig


def test_figures_can_be_read_by_tensorboard(tmp_path: Path) -> None:
    config = TrainerConfig(quiet=True, tensorboard=tmp_path / "runs")
    with trainer_of(Clicks(), config=config) as trainer:
        history = trainer.fit(clicks(), epochs=2, validation=clicks(seed=1))
    events = EventAccumulator(str(tmp_path / "runs"))
    events.Reload()
    written = set(events.Tags()["scalars"])
    assert {"train/loss", "train/auc", "speed/examples_per_s", "validation/auc"} <= written
    assert [event.step for event in events.Scalars("fleet/rows")] == [384, 768]
    found = [event.value for event in events.Scalars("validation/loss")]
    wanted = [epoch.validation["loss"] for epoch in history.epochs if epoch.validation]
    assert found == pytest.approx(wanted, rel=1e-6)


def test_missing_package_is_reported_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with trainer_of(Clicks(), config=TrainerConfig(quiet=True, tensorboard="runs")) as trainer:
        with pytest.raises(ConfigError, match=r"'runs'.*pip install sparsefleet\[tensorboard\]"):
            trainer.fit(clicks())
