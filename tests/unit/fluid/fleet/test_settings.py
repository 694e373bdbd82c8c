from __future__ import annotations

import logging

import pytest

from sparsefleet.errors import ConfigError
from sparsefleet.fluid.fleet import (
    DistributeTranspilerConfig,
    HashName,
    PSDispatcher,
    RoundRobin,
    StrategyFactory,
    TrainerRuntimeConfig,
)


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


def test_defaults_are_fluids() -> None:
    config = DistributeTranspilerConfig()
    assert config.as_dict() == {
        "slice_var_up": True,
        "enable_dc_asgd": False,
        "mode": "pserver",
        "print_log": False,
        "wait_port": True,
        "half_async": False,
        "completely_not_async": False,
        "geo_sgd_mode": False,
        "geo_sgd_need_push_nums": 100,
        "collective_mode": None,
        "nccl_comm_num": 1,
        "use_hierarchical_allreduce": False,
        "hierarchical_allreduce_inter_nranks": 0,
        "min_block_size": 8192,
        "split_method": None,
        "sync_mode": True,
        "runtime_split_send_recv": False,
    }


def test_sync_mode_and_runtime_split_exclude_each_other() -> None:
    config = DistributeTranspilerConfig()
    with pytest.raises(ConfigError, match="set sync_mode = False first"):
        config.runtime_split_send_recv = True
    config.sync_mode = False
    config.runtime_split_send_recv = True
    with pytest.raises(ConfigError, match="set runtime_split_send_recv = False first"):
        config.sync_mode = True
    for field in ("sync_mode", "runtime_split_send_recv"):
        with pytest.raises(ConfigError, match=f"{field} must be True or False, got None"):
            setattr(config, field, None)


@pytest.mark.parametrize("wrong", [8191, 0, "8192", 8192.0, True])
def test_min_block_size_is_checked(wrong: object) -> None:
    with pytest.raises(ConfigError, match="min_block_size must be an int >= 8192"):
        DistributeTranspilerConfig().min_block_size = wrong  # type: ignore[assignment]


def test_split_method_must_derive_from_the_dispatcher_directly() -> None:
    config = DistributeTranspilerConfig()
    config.split_method = HashName
    config.split_method = None

    class Indirect(RoundRobin):
        pass

    for wrong in (Indirect, int, "RoundRobin"):
        with pytest.raises(ConfigError, match="direct subclass of PSDispatcher"):
            config.split_method = wrong  # type: ignore[assignment]


def test_round_robin_continues_between_calls_until_reset() -> None:
    dealer: PSDispatcher = RoundRobin(["a:1", "b:1", "c:1"])
    assert dealer.dispatch(["w0", "w1"]) == ["a:1", "b:1"]
    assert dealer.dispatch(["w2", "w3"]) == ["c:1", "a:1"]
    dealer.reset()
    assert dealer.dispatch(["w4"]) == ["a:1"]
    assert dealer.eps == ["a:1", "b:1", "c:1"]


def test_hash_of_the_name_does_not_depend_on_order() -> None:
    names = [f"w{index}" for index in range(20)]
    dealt = HashName(["a:1", "b:1"]).dispatch(names)
    assert HashName(["a:1", "b:1"]).dispatch(reversed(names)) == dealt[::-1]
    assert set(dealt) == {"a:1", "b:1"}
