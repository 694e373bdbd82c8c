"""Callbacks are notified of a worker killed under `sparsefleet launch --keep-going`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.support.launch_process import LaunchProcess

SCRIPT = Path(__file__).with_name("lost_worker_script.py")


@pytest.mark.job
@pytest.mark.parametrize(
    ("mode", "lost", "saves"),
    [
        ("sync", 1, False),
        ("async", 2, True),
        ("async", 0, True),
    ],
)
def test_callbacks_hear_of_a_killed_worker(
    mode: str, lost: int, saves: bool, tmp_path: Path
) -> None:
    out = tmp_path / "seen"
    out.mkdir()
    words = [
        "--servers",
        "1",
        "--workers",
        "3",
        "--keep-going",
        "--max-restarts",
        "0",
        "--env",
        f"LOST={lost}",
    ]
    words += [str(SCRIPT), mode, str(out)]
    launched = LaunchProcess(tmp_path, *words, *([str(tmp_path / "series")] if saves else []))
    try:
        # Only the lost worker could read its data, so records were left out.
        assert launched.wait() != 0, launched.output()
        assert f"worker {lost} was killed by SIGKILL" in launched.output()
        assert "some data of lost workers was not used (worker" in launched.output()
        assert re.search(rf"not used \(worker {lost}, [78] batches: ", launched.output())
    finally:
        launched.close()
    seen = {int(path.name[-1]): path.read_text().split("\n")[:-1] for path in out.iterdir()}
    assert seen.pop(lost) == ["epoch 1"]
    assert sorted(seen) == sorted({0, 1, 2} - {lost})
    for events in seen.values():
        assert events.count(f"lost {lost}") == 1
        assert sorted(events) == sorted(["epoch 1", f"lost {lost}", "epoch 2", "end"])
        assert events[0] == "epoch 1"
        assert events[-1] == "end"
