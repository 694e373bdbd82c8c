from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from tests.support.checkpoints import as_table, save, two_tables

from sparsefleet.checkpoint import Checkpoint, clean_up, compact, latest, list_checkpoints, rotate
from sparsefleet.checkpoint.names import step_name
from sparsefleet.checkpoint.pending_checkpoint import PendingCheckpoint
from sparsefleet.errors import CheckpointIoError, ConfigError


def add(folder: Path, step: int, base: int | None = None) -> None:
    save(
        str(folder / step_name(step)),
        two_tables(step, 20),
        step=step,
        base=None if base is None else str(folder / step_name(base)),
    )


def steps(folder: Path) -> list[int]:
    return [listed.step for listed in list_checkpoints(str(folder))]


def test_checkpoints_are_listed_by_step_and_the_latest_is_found(tmp_path: Path) -> None:
    assert latest(str(tmp_path)) is None
    assert list_checkpoints(str(tmp_path / "nowhere")) == []
    for step in (300, 1000, 20):
        add(tmp_path, step)
    (tmp_path / "step-7").mkdir()
    (tmp_path / step_name(2000)).mkdir()
    assert steps(tmp_path) == [20, 300, 1000]
    found = latest(str(tmp_path))
    assert found is not None
    assert found.manifest.step == 20, "the last one saved: the training has gone back"


def test_what_was_saved_last_stays_whatever_its_step_and_the_clock_say(tmp_path: Path) -> None:
    for step in (300, 1000, 20):
        add(tmp_path, step)
    assert rotate(str(tmp_path), 2) == [str(tmp_path / step_name(300))]
    rotate(str(tmp_path), 1, newest=step_name(1000))
    assert steps(tmp_path) == [1000]


def test_rotation_removes_a_link_and_not_what_it_leads_to(tmp_path: Path) -> None:
    add(tmp_path / "archive", 1)
    series = tmp_path / "series"
    series.mkdir()
    (series / step_name(1)).symlink_to(tmp_path / "archive" / step_name(1))
    add(series, 2)
    rotate(str(series), 1)
    assert steps(series) == [2]
    Checkpoint.open(str(tmp_path / "archive" / step_name(1))).verify()


def test_compaction_does_not_make_a_checkpoint_the_newest(tmp_path: Path) -> None:
    add(tmp_path, 1)
    add(tmp_path, 2, base=1)
    add(tmp_path, 3)
    compact(str(tmp_path / step_name(2)))
    found = latest(str(tmp_path))
    assert found is not None
    assert found.manifest.step == 3


def test_a_damaged_checkpoint_is_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for step in (1, 2, 3):
        add(tmp_path, step)
    next((tmp_path / step_name(3)).glob("dense-*")).unlink()
    (tmp_path / step_name(2) / "manifest.json").write_text("{}")
    found = latest(str(tmp_path))
    assert found is not None
    assert found.manifest.step == 1
    assert "dense-" in caplog.text


def test_rotation_keeps_the_newest(tmp_path: Path) -> None:
    for step in range(5):
        add(tmp_path, step)
    removed = rotate(str(tmp_path), 2)
    assert [Path(path).name for path in removed] == [step_name(2), step_name(1), step_name(0)]
    assert steps(tmp_path) == [3, 4]
    assert len(list(tmp_path.iterdir())) == 2
    assert rotate(str(tmp_path), 2) == []
    with pytest.raises(ConfigError, match="keep must be >= 1"):
        rotate(str(tmp_path), 0)


def test_rotation_keeps_what_deltas_build_on(tmp_path: Path) -> None:
    add(tmp_path, 1)
    add(tmp_path, 2, base=1)
    add(tmp_path, 3)
    add(tmp_path, 4, base=3)
    add(tmp_path, 5, base=4)
    rotate(str(tmp_path), 1)
    assert steps(tmp_path) == [3, 4, 5]
    found = latest(str(tmp_path))
    assert found is not None
    found.verify()
    assert as_table(found.rows("ads"))


def test_leftovers_of_a_crashed_save_of_a_series_are_removed(tmp_path: Path) -> None:
    add(tmp_path, 1)
    crashed = PendingCheckpoint.begin(str(tmp_path / step_name(2)))
    crashed.write_workers([])
    running = PendingCheckpoint.begin(str(tmp_path / step_name(3)))
    crashed._marker.release()  # what the end of its process does
    (tmp_path / step_name(4)).mkdir()
    removed = clean_up(str(tmp_path))
    assert [Path(path).parent.name for path in removed] == [step_name(2)] * 2
    assert sorted(path.name for path in tmp_path.iterdir()) == [step_name(1), step_name(3)]
    running.abort()
    Checkpoint.open(str(tmp_path / step_name(1))).verify()


def test_steps_have_twelve_digits() -> None:
    with pytest.raises(ConfigError, match="step"):
        step_name(10**12)
    with pytest.raises(ConfigError, match="step"):
        step_name(-1)


@pytest.mark.parametrize("calls", [0, 1, 3, 6])
def test_a_rotation_that_breaks_off_leaves_whole_checkpoints_and_leftovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    add(tmp_path, 1)
    add(tmp_path, 2, base=1)
    add(tmp_path, 3)
    real, left = os.unlink, calls

    def unlink(path: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", unlink)
        with pytest.raises(CheckpointIoError, match="cannot remove"):
            rotate(str(tmp_path), 1)
    for listed in list_checkpoints(str(tmp_path)):
        Checkpoint.open(listed.path).verify()
    rotate(str(tmp_path), 1)
    clean_up(str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == [step_name(3)]
