"""Saves and resumes in unplanned situations: old series, damage, changed jobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.saved_training import (
    BreakingData,
    StoppedError,
    assert_same,
    click_batches,
    contents,
    make_trainer,
)

from sparsefleet.checkpoint import Checkpoint, latest, list_checkpoints
from sparsefleet.checkpoint.pending_checkpoint import PendingCheckpoint
from sparsefleet.errors import CheckpointError
from sparsefleet.train import CheckpointConfig


def series_of(directory: Path, **options: Any) -> CheckpointConfig:
    settings = {"every_steps": 3, "keep": 100, "skip_while_writing": False, **options}
    return CheckpointConfig(directory=directory, **settings)


def flip_a_bit(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def newest_step(directory: Path) -> int:
    found = latest(str(directory))
    assert found is not None
    return found.manifest.step


def test_a_training_started_over_keeps_its_own_checkpoints_and_resumes_from_them(
    tmp_path: Path,
) -> None:
    with make_trainer(mode="local", checkpoints=series_of(tmp_path)) as trainer:
        trainer.fit(click_batches(9))
    with pytest.raises(StoppedError):
        with make_trainer(
            mode="local", checkpoints=series_of(tmp_path, keep=2, deltas_between_fulls=1)
        ) as trainer:
            trainer.fit(BreakingData(click_batches(7), stop_at=5))
    assert newest_step(tmp_path) == 3
    with make_trainer(
        mode="local", checkpoints=series_of(tmp_path, keep=2), resume="auto"
    ) as trainer:
        assert trainer.fit(click_batches(7)).last.steps == 4
    assert newest_step(tmp_path) == 7


def test_a_training_that_went_back_keeps_what_it_saves(tmp_path: Path) -> None:
    config = series_of(tmp_path, keep=3)
    with make_trainer(mode="local", checkpoints=config) as trainer:
        trainer.fit(click_batches(9))
    with make_trainer(
        mode="local",
        checkpoints=series_of(tmp_path, every_steps=2, keep=1, each_epoch=False),
        resume=tmp_path / "step-000000000003",
    ) as trainer:
        trainer.fit(BreakingData(click_batches(8)))
    assert [each.step for each in list_checkpoints(str(tmp_path))] == [8]


def test_a_damaged_checkpoint_does_not_push_out_whole_ones(tmp_path: Path) -> None:
    with make_trainer(mode="local", checkpoints=series_of(tmp_path, keep=2)) as trainer:
        trainer.fit(click_batches(9))
    for file in (tmp_path / "step-000000000009").glob("tables/*/*.parquet"):
        flip_a_bit(file)
    with pytest.raises(StoppedError):
        with make_trainer(
            mode="local", checkpoints=series_of(tmp_path, every_steps=1, keep=1), resume="auto"
        ) as trainer:
            trainer.fit(BreakingData(click_batches(9), stop_at=8))
    assert newest_step(tmp_path) == 8


def test_a_checkpoint_with_damaged_positions_is_passed_over(tmp_path: Path) -> None:
    with make_trainer(mode="local", checkpoints=series_of(tmp_path)) as trainer:
        trainer.fit(click_batches(8))
    flip_a_bit(next((tmp_path / "step-000000000008").glob("workers-*.json")))
    with make_trainer(mode="local", checkpoints=series_of(tmp_path), resume="auto") as trainer:
        assert trainer.fit(click_batches(8)).last.steps == 2


@pytest.mark.parametrize("damaged", ["manifest.json", "workers-*.json", "tables/*/*.parquet"])
def test_a_series_of_damaged_checkpoints_is_not_started_over(damaged: str, tmp_path: Path) -> None:
    with make_trainer(mode="local", checkpoints=series_of(tmp_path, keep=2)) as trainer:
        trainer.fit(click_batches(8))
    for place in tmp_path.glob("step-*"):
        for file in place.glob(damaged):
            flip_a_bit(file)
    with make_trainer(mode="local", checkpoints=series_of(tmp_path), resume="auto") as trainer:
        with pytest.raises(CheckpointError, match="none of the 2 checkpoints"):
            trainer.fit(click_batches(8))


def test_a_save_before_the_first_step_keeps_the_position(tmp_path: Path) -> None:
    with pytest.raises(StoppedError):
        with make_trainer(mode="local", checkpoints=series_of(tmp_path / "series")) as trainer:
            trainer.fit(BreakingData(click_batches(8), stop_at=5))
    middle = tmp_path / "series" / "step-000000000003"
    with make_trainer(mode="local", resume=middle) as trainer:
        trainer.save(tmp_path / "again")
    assert_same(contents(tmp_path / "again"), contents(middle))
    assert (
        Checkpoint.open(str(tmp_path / "again")).workers() == Checkpoint.open(str(middle)).workers()
    )
    with make_trainer(mode="local", resume=tmp_path / "again") as trainer:
        assert trainer.fit(click_batches(8)).last.steps == 5


def test_deltas_after_a_load_hold_what_was_loaded(tmp_path: Path) -> None:
    with make_trainer(mode="local") as trainer:
        trainer.fit(click_batches(2, seed=5))
        trainer.save(tmp_path / "other")
    config = series_of(tmp_path / "series", deltas_between_fulls=9)
    with make_trainer(mode="local", checkpoints=config) as trainer:
        trainer.fit(click_batches(8))
        trainer.load(tmp_path / "other")
        trainer.fit(click_batches(2))
        trainer.save(tmp_path / "full")
    listed = list_checkpoints(str(tmp_path / "series"))
    assert_same(contents(listed[-1].path), contents(tmp_path / "full"))


def test_a_delta_is_not_built_on_the_checkpoint_of_another_job(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = series_of(tmp_path / "series", deltas_between_fulls=9, each_epoch=False)
    with make_trainer(mode="local") as other:
        other.fit(click_batches(2, seed=5))

        def batches() -> Iterator[Any]:
            for number, batch in enumerate(click_batches(9)):
                if number == 4:
                    trainer._training._writers.wait()
                    other.save(tmp_path / "series" / "step-000000000003")
                yield batch

        with make_trainer(mode="local", checkpoints=config) as trainer:
            trainer.fit(batches)
            trainer.save(tmp_path / "full")
    assert "another job saves to the same directory" in caplog.text
    newest = latest(str(tmp_path / "series"))
    assert newest is not None
    assert (newest.manifest.step, newest.manifest.kind) == (9, "full")
    assert_same(contents(newest.path), contents(tmp_path / "full"))


def test_what_a_killed_save_left_behind_is_removed_by_the_next_run(tmp_path: Path) -> None:
    killed = PendingCheckpoint.begin(str(tmp_path / "step-000000000004"))
    killed.write_workers([])
    killed._marker.release()  # what the end of its process does
    running = PendingCheckpoint.begin(str(tmp_path / "step-000000000005"))
    with make_trainer(mode="local", checkpoints=series_of(tmp_path)) as trainer:
        trainer.fit(click_batches(3))
    assert sorted(path.name for path in tmp_path.glob("step-*")) == [
        "step-000000000003",
        "step-000000000005",
    ]
    running.abort()
