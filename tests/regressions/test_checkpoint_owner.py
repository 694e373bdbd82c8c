"""A directory of checkpoints belongs to one job, and "newest" does not depend on the clock."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.unit.train.click_model import BCE, QUIET
from torch import Tensor, nn

from sparsefleet import optim
from sparsefleet.checkpoint import latest, list_checkpoints, pending_checkpoint, rotate
from sparsefleet.checkpoint.names import step_name
from sparsefleet.checkpoint.pending_checkpoint import PendingCheckpoint
from sparsefleet.checkpoint.series import SeriesOwner
from sparsefleet.errors import CheckpointError, CheckpointMismatchError
from sparsefleet.fleet import Fleet
from sparsefleet.nn import SparseEmbedding
from sparsefleet.train import CheckpointConfig, Trainer, TrainerConfig

BATCHES = [(torch.arange(4), torch.tensor([0.0, 1.0, 0.0, 1.0]))] * 3


class Clicks(nn.Module):
    def __init__(self, width: int = 1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.ads = SparseEmbedding("ads", width)

    def forward(self, ad: Tensor) -> Tensor:
        return self.ads(ad).sum(1)


def trainer(
    directory: Path,
    *,
    job: str | None = None,
    resume: str | None = None,
    width: int = 1,
    config: TrainerConfig = QUIET,
) -> Trainer:
    return Trainer(
        Clicks(width),
        BCE,
        optim.SGD(lr=0.1),
        config=config,
        checkpoints=CheckpointConfig(directory=directory, job=job),
        resume=resume,
        fleet=Fleet(),
    )


@pytest.mark.parametrize("resume", [None, "auto"])
def test_another_job_neither_resumes_nor_overwrites(tmp_path: Path, resume: str | None) -> None:
    with trainer(tmp_path, job="first") as first:
        first.fit(BATCHES, epochs=1)
    before = [each.manifest for each in list_checkpoints(str(tmp_path))]
    with (
        trainer(tmp_path, job="second", resume=resume) as second,
        pytest.raises(CheckpointMismatchError, match="job 'first', and this is job 'second'"),
    ):
        second.fit(BATCHES, epochs=1)
    assert [each.manifest for each in list_checkpoints(str(tmp_path))] == before
    with trainer(tmp_path, job="first", resume="auto") as again:
        assert again.fit(BATCHES, epochs=2).epochs[0].number == 2


def test_another_model_is_refused(tmp_path: Path) -> None:
    with trainer(tmp_path) as first:
        first.fit(BATCHES, epochs=1)
    with (
        trainer(tmp_path, width=2) as second,
        pytest.raises(CheckpointMismatchError, match="a different model"),
    ):
        second.fit(BATCHES, epochs=1)


def test_a_checkpoint_of_another_job_is_continued_if_it_is_named(tmp_path: Path) -> None:
    with trainer(tmp_path, job="first") as first:
        first.fit(BATCHES, epochs=1)
    newest = latest(str(tmp_path))
    assert newest is not None
    with trainer(tmp_path, job="second", resume=newest.path) as second:
        assert second.fit(BATCHES, epochs=2).epochs[0].number == 2
    owner = SeriesOwner.of(str(tmp_path))
    assert owner is not None
    assert owner.job == "second"


def test_a_checkpoint_named_through_a_link_is_continued(tmp_path: Path) -> None:
    place, link = tmp_path / "run", tmp_path / "newest"
    with trainer(place, job="first") as first:
        first.fit(BATCHES, epochs=1)
    link.symlink_to(place)
    newest = latest(str(link))
    assert newest is not None
    with trainer(place, job="second", resume=newest.path) as second:
        assert second.fit(BATCHES, epochs=2).epochs[0].number == 2
    owner = SeriesOwner.of(str(place))
    assert owner is not None
    assert (owner.job, owner.generation) == ("second", 1)


def test_a_start_from_scratch_says_so_and_is_not_resumed_from_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with trainer(tmp_path) as first:
        first.fit(BATCHES, epochs=1)

    def dies() -> list[object]:
        raise ArithmeticError

    with caplog.at_level(logging.WARNING), trainer(tmp_path) as second:
        with pytest.raises(ArithmeticError):
            second.fit(dies, epochs=1)
    assert "starts from scratch (generation 2)" in caplog.text
    with trainer(tmp_path, resume="auto") as third:
        assert [epoch.number for epoch in third.fit(BATCHES, epochs=1).epochs] == [1]


def test_a_training_whose_directory_was_taken_over_saves_no_more(tmp_path: Path) -> None:
    first = trainer(tmp_path)
    first.fit(BATCHES, epochs=1)
    with trainer(tmp_path, resume="auto") as second:
        second.fit(BATCHES, epochs=2)
    first.fit(BATCHES, epochs=1)
    with pytest.raises(CheckpointError, match="the directory now belongs to"):
        first.close()
    newest = latest(str(tmp_path))
    assert newest is not None
    assert newest.manifest.step == 6


def test_order_follows_saves_after_the_clock_was_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class SlowClock(datetime):
        set_back = timedelta()

        @classmethod
        def now(cls, tz=None):  # type: ignore[no-untyped-def, override]
            return datetime.now(tz) - cls.set_back

    monkeypatch.setattr(pending_checkpoint, "datetime", SlowClock)

    def save(step: int) -> None:
        with PendingCheckpoint.begin(str(tmp_path / step_name(step))) as pending:
            pending.write_dense({"bias": np.zeros(1, np.float32)})
            pending.commit(step=step)

    for step in (10, 20):
        save(step)
    SlowClock.set_back = timedelta(hours=1)
    for step in (30, 15):  # the last one went back to an earlier step
        save(step)
    newest = latest(str(tmp_path))
    assert newest is not None
    assert newest.manifest.step == 15
    rotate(str(tmp_path), keep=2)
    assert [each.step for each in list_checkpoints(str(tmp_path))] == [15, 30]


def test_a_finished_training_says_that_nothing_is_left_to_train(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with trainer(tmp_path) as first:
        first.fit(BATCHES, epochs=1)
    loud = trainer(tmp_path, resume="auto", config=TrainerConfig(quiet=False))
    with loud as again:
        assert again.fit(BATCHES, epochs=1).epochs == []
    said = capsys.readouterr().out
    assert "fit 1 was finished when" in said
    assert "no batches" not in said
