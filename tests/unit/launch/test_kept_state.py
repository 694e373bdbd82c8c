"""What a launcher finds in --state-dir decides whether it continues the previous job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sparsefleet.errors import ConfigError
from sparsefleet.launch import LaunchConfig
from sparsefleet.launch.job import KeptState
from sparsefleet.store.own_loop import own_loop_path


def state(place: Path, **fields: Any) -> KeptState:
    settings = {"script": __file__, "num_servers": 1, "num_workers": 2, "state_dir": str(place)}
    return KeptState(LaunchConfig(**{**settings, **fields}))


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """Return the directory of an interrupted job."""
    with state(tmp_path).opened() as kept:
        kept.begin("3f")
    return tmp_path


def test_a_job_is_continued_until_its_state_is_removed(begun: Path) -> None:
    with state(begun).opened() as kept:
        assert kept.job_id == "3f"
        kept.remove()
    with state(begun).opened() as kept:
        assert kept.job_id == ""


def test_a_loop_that_would_begin_again_is_not_continued(begun: Path) -> None:
    """Its data would be trained twice, since the servers keep the updates of the first time."""
    Path(own_loop_path(state(begun).logs, 1)).touch()
    for fields in ({}, {"restart": "all"}):
        with pytest.raises(ConfigError, match=r"worker 1 trained in a custom loop"):
            state(begun, **fields).opened().__enter__()
    with state(begun, restart="killed").opened() as kept:
        assert kept.job_id == "3f"
