"""Jobs of real processes whose script follows Fluid's fleet: train, save, continue elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.launch_process import LaunchProcess

SCRIPT = Path(__file__).with_name("fleet_script.py")


@contextmanager
def job(directory: Path, *words: str) -> Iterator[LaunchProcess]:
    launched = LaunchProcess(directory, *words)
    try:
        yield launched
    finally:
        launched.close()


def totals(launched: LaunchProcess, num_workers: int) -> list[str]:
    """Return what each worker printed about its final model."""
    found = []
    for index in range(num_workers):
        match = re.search(r"worker \d of \d: (\S+)", launched.log(f"workerlog.{index}"))
        assert match is not None, launched.log(f"workerlog.{index}")
        found.append(match.group(1))
    return found


@pytest.mark.parametrize("mode", ["sync", pytest.param("async", marks=pytest.mark.job)])
def test_job_trains_saves_and_another_with_more_servers_starts_from_it(
    mode: str, tmp_path: Path
) -> None:
    out = str(tmp_path / "model")
    with job(tmp_path, "--servers", "1", "--workers", "2", str(SCRIPT), mode, out) as first:
        assert first.wait() == 0, first.output()
        trained = totals(first, 2)
    assert trained[0] == trained[1]
    words = ("--servers", "2", "--workers", "1", str(SCRIPT), mode, out + "-again", out)
    with job(tmp_path, *words) as second:
        assert second.wait() == 0, second.output()
        assert totals(second, 1) == trained[:1]
