from __future__ import annotations

import json
from pathlib import Path

import pytest

from sparsefleet.errors import CheckpointError
from sparsefleet.fluid.fleet.collective_fleet import CheckPoints
from sparsefleet.fluid.incubate.fleet.collective import TrainStatus
from sparsefleet.fluid.io.file_systems import LocalFS


class FarFolder(LocalFS):
    """A folder that can be accessed only by upload and download."""

    def need_upload_download(self) -> bool:
        return True


def write(text: str) -> object:
    return lambda folder: (Path(folder) / "parameters").write_text(text)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("fs", [None, FarFolder()])
def test_the_last_check_point_is_loaded(tmp_path: Path, fs: LocalFS | None) -> None:
    root, cache = tmp_path / "points", str(tmp_path / "cache")
    points = CheckPoints(root, fs)
    assert points.last() == -1
    for epoch in range(3):
        assert points.add(TrainStatus(epoch), write(f"of {epoch}"), cache) == epoch
    assert names(root) == [f"__paddle_fleet_checkpoint__.{number}" for number in range(3)]
    found: list[str] = []
    status = points.load(
        2, lambda folder: found.append((Path(folder) / "parameters").read_text()), cache, 0
    )
    assert (found, status, status.next()) == (["of 2"], TrainStatus(2), 3)
    points.keep(2)
    assert points.numbers() == [1, 2]
    points.keep(0)
    assert points.numbers() == [2]


def test_an_unfinished_save_is_not_a_check_point(tmp_path: Path) -> None:
    points = CheckPoints(tmp_path)
    points.add(TrainStatus(0), write("whole"), "")

    def fail(folder: str) -> None:
        raise OSError(f"{folder}: full")

    with pytest.raises(OSError, match="full"):
        points.add(TrainStatus(1), fail, "")
    assert points.last() == 0
    assert points.add(TrainStatus(1), write("again"), "") == 1


def test_a_status_that_cannot_be_is_reported(tmp_path: Path) -> None:
    points = CheckPoints(tmp_path)
    points.add(TrainStatus(0), write("whole"), "")
    status = tmp_path / "__paddle_fleet_checkpoint__.0" / "fleet_train_status"
    assert json.loads(status.read_text()) == {"epoch_no": 0}
    for text in ('{"epoch": 1}', "{", '{"epoch_no": -3}'):
        status.write_text(text)
        with pytest.raises(CheckpointError, match="epoch_no"):
            points.load(0, lambda _: None, "", 0)
    status.unlink()
    assert points.load(0, lambda _: None, "", 0) == TrainStatus()
