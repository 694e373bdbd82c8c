"""Jobs of several workers without servers train collectively, or say why they cannot."""

from __future__ import annotations

import pytest

from sparsefleet.engine.binding import mode_for_job
from sparsefleet.errors import ConfigError
from sparsefleet.fleet.fleet_sharding import FleetSharding
from sparsefleet.fleet.meeting import Meeting
from sparsefleet.fleet.role_info import RoleInfo
from sparsefleet.modes import CollectiveConfig, SyncConfig
from sparsefleet.store import LocalStore

TWO_WORKERS = RoleInfo(kind="worker", index=0, worker_num=2)
ALONE = RoleInfo(kind="local")


def test_several_workers_without_servers_are_collective_by_default() -> None:
    assert isinstance(mode_for_job(None, TWO_WORKERS), CollectiveConfig)
    assert isinstance(mode_for_job("collective", TWO_WORKERS), CollectiveConfig)
    assert mode_for_job(None, ALONE) is None


@pytest.mark.parametrize("mode", ["sync", "local"])
def test_modes_that_need_servers_are_refused_to_several_workers_without(mode: str) -> None:
    with pytest.raises(
        ConfigError, match=f"mode '{mode}' cannot connect .* 2 workers and no servers"
    ):
        mode_for_job(mode, TWO_WORKERS)


def test_other_modes_stay_for_one_worker() -> None:
    assert isinstance(mode_for_job("sync", ALONE), SyncConfig)


def test_ranks_of_torchrun_do_not_train_apart_by_oversight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(ConfigError, match="worker 1 of 2 .* mode='collective'"):
        mode_for_job(None, ALONE)
    assert mode_for_job("local", ALONE) is not None


def test_files_are_not_dealt_out_without_a_server() -> None:
    store = LocalStore()
    sharding = FleetSharding(lambda: (store, Meeting(store, TWO_WORKERS)), "train")
    with pytest.raises(ConfigError, match=r"sharding\('train'\).* 2 workers has no servers"):
        sharding.begin([])
