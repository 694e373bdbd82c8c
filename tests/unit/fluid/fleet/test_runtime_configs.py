from __future__ import annotations

import logging

import pytest

from sparsefleet.errors import ConfigError
from sparsefleet.fluid.fleet import StrategyFactory, TrainerRuntimeConfig


@pytest.fixture(autouse=True)
def _four_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CPU_NUM", "4")


def test_defaults_follow_cpu_num() -> None:
    assert TrainerRuntimeConfig().runtime_configs == {
        "communicator_max_merge_var_num": "4",
        "communicator_send_queue_size": "4",
        "communicator_independent_recv_thread": "1",
        "communicator_min_send_grad_num_before_recv": "4",
        "communicator_thread_pool_size": "5",
        "communicator_send_wait_times": "5",
        "communicator_is_sgd_optimizer": "1",
        "rpc_deadline": "180000",
        "rpc_retry_times": "3",
    }


def test_flags_override_when_the_config_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    config = TrainerRuntimeConfig()
    monkeypatch.setenv("FLAGS_communicator_thread_pool_size", "9")
    assert config.runtime_configs["communicator_thread_pool_size"] == "5"
    assert TrainerRuntimeConfig().runtime_configs["communicator_thread_pool_size"] == "9"
    monkeypatch.setenv("FLAGS_communicator_thread_pool_size", "nine")
    with pytest.raises(ConfigError, match="FLAGS_communicator_thread_pool_size must be"):
        TrainerRuntimeConfig()


def test_sync_and_half_async_merge_all_threads_and_warn(caplog: pytest.LogCaptureFixture) -> None:
    for make in (StrategyFactory.create_sync_strategy, StrategyFactory.create_half_async_strategy):
        caplog.clear()
        config = make().get_trainer_runtime_config()
        config.get_communicator_flags()
        assert not caplog.records
        config.runtime_configs["communicator_send_queue_size"] = "20"
        with caplog.at_level(logging.WARNING):
            assert config.get_communicator_flags()["communicator_send_queue_size"] == "4"
        assert "communicator_send_queue_size must be CPU_NUM, 4, got 20" in caplog.text


def test_async_keeps_what_is_set(caplog: pytest.LogCaptureFixture) -> None:
    strategy = StrategyFactory.create_async_strategy()
    strategy.set_trainer_runtime_config(
        {"communicator_send_queue_size": 20, "communicator_is_sgd_optimizer": False}
    )
    flags = strategy.get_trainer_runtime_config().get_communicator_flags()
    assert flags["communicator_send_queue_size"] == "20"
    assert flags["communicator_is_sgd_optimizer"] == "0"
    assert not caplog.records


def test_geo_takes_two_knobs() -> None:
    config = StrategyFactory.create_geo_strategy().get_trainer_runtime_config()
    assert sorted(config.get_communicator_flags()) == [
        "communicator_send_wait_times",
        "communicator_thread_pool_size",
    ]


def test_print_shows_a_table_of_the_modes_knobs() -> None:
    shown = str(StrategyFactory.create_async_strategy().get_trainer_runtime_config())
    lines = shown.splitlines()
    assert len({len(line) for line in lines[1:]}) == 1
    assert any("communicator_is_sgd_optimizer" in line and "1" in line for line in lines)
    geo = str(StrategyFactory.create_geo_strategy().get_trainer_runtime_config())
    assert "communicator_is_sgd_optimizer" not in geo


def test_wrong_knob_is_named() -> None:
    config = StrategyFactory.create_async_strategy().get_trainer_runtime_config()
    with pytest.raises(ConfigError, match="rpc_deadline must be an integer >= 1, got 'soon'"):
        config.update({"rpc_deadline": "soon"})
    config.runtime_configs["rpc_dedline"] = "1"
    with pytest.raises(ConfigError, match="did you mean 'rpc_deadline'"):
        config.get_communicator_flags()
