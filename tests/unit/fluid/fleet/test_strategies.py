from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from sparsefleet.errors import ConfigError
from sparsefleet.fleet import Fleet
from sparsefleet.fluid.fleet import (
    AsyncStrategy,
    BuildStrategy,
    DistributedStrategy,
    DistributedStrategyFactory,
    DistributeTranspilerConfig,
    ExecutionStrategy,
    GeoStrategy,
    HalfAsyncStrategy,
    ServerRuntimeConfig,
    StrategyFactory,
    SyncStrategy,
    TrainerRuntimeConfig,
    distributed_optimizer,
    strategy_from,
)
from sparsefleet.nn import SparseEmbedding

ALL = [
    StrategyFactory.create_sync_strategy,
    StrategyFactory.create_half_async_strategy,
    StrategyFactory.create_async_strategy,
    StrategyFactory.create_geo_strategy,
]
# sync_mode, runtime_split_send_recv, half_async, completely_not_async, geo_sgd_mode,
# use_thread_barrier, async_mode: the table of Fluid 1.8.5.
IMPOSED = {
    "sync": (False, True, True, True, False, True, True),
    "half_async": (False, True, True, False, False, True, True),
    "async": (False, True, False, False, False, False, True),
    "geo": (False, True, False, False, True, False, True),
}


def imposed(strategy: DistributedStrategy) -> tuple[bool, ...]:
    program = strategy.get_program_config()
    return (
        program.sync_mode,
        program.runtime_split_send_recv,
        program.half_async,
        program.completely_not_async,
        program.geo_sgd_mode,
        strategy.get_execute_strategy().use_thread_barrier,
        strategy.get_build_strategy().async_mode,
    )


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CPU_NUM", raising=False)


def test_both_factory_names_are_one_class() -> None:
    assert DistributedStrategyFactory is StrategyFactory


@pytest.mark.parametrize("make", ALL)
def test_values_that_make_the_mode(make: Any) -> None:
    strategy = make()
    assert imposed(strategy) == IMPOSED[strategy.mode_name]


@pytest.mark.parametrize("make", ALL)
def test_setters_cannot_change_the_mode(make: Any) -> None:
    strategy = make()
    strategy.set_program_config(DistributeTranspilerConfig())
    strategy.set_execute_strategy(ExecutionStrategy())
    strategy.set_build_strategy(BuildStrategy())
    strategy.set_trainer_runtime_config(TrainerRuntimeConfig())
    assert imposed(strategy) == IMPOSED[strategy.mode_name]
    flags = ("half_async", "completely_not_async", "geo_sgd_mode", "sync_mode")
    strategy.set_program_config(dict.fromkeys(flags, True))
    strategy.set_execute_strategy({"use_thread_barrier": strategy.mode_name == "async"})
    strategy.set_build_strategy({"async_mode": False})
    assert imposed(strategy)[:5] == IMPOSED[strategy.mode_name][:5]
    assert strategy.get_build_strategy().async_mode
    assert strategy.get_trainer_runtime_config().mode == strategy.mode_name


def test_getters_give_the_live_config() -> None:
    strategy = StrategyFactory.create_sync_strategy()
    strategy.get_program_config().min_block_size = 81920
    assert strategy.get_program_config().min_block_size == 81920
    strategy.get_execute_strategy().num_threads = 3
    assert strategy.get_execute_strategy().num_threads == 3


def test_setters_take_an_object_or_a_dict() -> None:
    strategy = StrategyFactory.create_async_strategy()
    config = DistributeTranspilerConfig()
    config.min_block_size = 81920
    strategy.set_program_config(config)
    assert strategy.get_program_config() is config
    strategy.set_program_config({"min_block_size": 10000, "slice_var_up": False})
    assert config.min_block_size == 10000
    assert not config.slice_var_up
    strategy.set_server_runtime_config({"_rpc_send_thread_num": 3, "rpc_get_thread_num": "4"})
    server = strategy.get_server_runtime_config()
    assert (server.rpc_send_thread_num, server.rpc_get_thread_num) == (3, 4)
    assert server._rpc_send_thread_num == 3
    strategy.set_trainer_runtime_config({"communicator_send_queue_size": 16})
    assert (
        strategy.get_trainer_runtime_config().runtime_configs["communicator_send_queue_size"]
        == "16"
    )


@pytest.mark.parametrize(
    ("setter", "fields", "nearest"),
    [
        ("set_program_config", {"min_blocksize": 9000}, "min_block_size"),
        ("set_trainer_runtime_config", {"communicator_send_queue": "1"}, "_send_queue_size"),
        ("set_server_runtime_config", {"rpc_send_threads_num": 1}, "rpc_send_thread_num"),
        ("set_execute_strategy", {"num_thread": 1}, "num_threads"),
        ("set_build_strategy", {"reduce_stratgy": 1}, "reduce_strategy"),
        ("set_debug_opt", {"dump_field": []}, "dump_fields"),
    ],
)
def test_unknown_field_is_refused_with_the_nearest_name(
    setter: str, fields: dict[str, object], nearest: str
) -> None:
    strategy = StrategyFactory.create_sync_strategy()
    with pytest.raises(ValueError, match=f"did you mean '.*{nearest}'"):
        getattr(strategy, setter)(fields)


@pytest.mark.parametrize(
    "setter",
    [
        "set_program_config",
        "set_trainer_runtime_config",
        "set_server_runtime_config",
        "set_execute_strategy",
        "set_build_strategy",
        "set_debug_opt",
    ],
)
def test_other_type_is_a_type_error(setter: str) -> None:
    with pytest.raises(TypeError, match="got list"):
        getattr(StrategyFactory.create_sync_strategy(), setter)([1])


def test_misspelt_attribute_is_refused_when_assigned() -> None:
    with pytest.raises(AttributeError, match="did you mean 'num_threads'"):
        ExecutionStrategy().num_thread = 2  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="did you mean 'sync_mode'"):
        DistributeTranspilerConfig().syncmode = False  # type: ignore[attr-defined]


def test_refused_dict_changes_nothing() -> None:
    strategy = StrategyFactory.create_sync_strategy()
    with pytest.raises(ConfigError, match="min_block_size"):
        strategy.set_program_config({"slice_var_up": False, "min_block_size": 1})
    assert strategy.get_program_config().slice_var_up


def test_cpu_num_sets_threads_and_reduce(monkeypatch: pytest.MonkeyPatch) -> None:
    strategy = StrategyFactory.create_async_strategy()
    assert strategy.get_execute_strategy().num_threads == 1
    kinds = BuildStrategy.ReduceStrategy
    assert strategy.get_build_strategy().reduce_strategy is kinds.AllReduce
    monkeypatch.setenv("CPU_NUM", "4")
    strategy = StrategyFactory.create_async_strategy()
    assert strategy.get_execute_strategy().num_threads == 4
    assert strategy.get_build_strategy().reduce_strategy is kinds.Reduce
    monkeypatch.setenv("CPU_NUM", "all")
    with pytest.raises(ConfigError, match="CPU_NUM must be an integer >= 1, got 'all'"):
        StrategyFactory.create_async_strategy()


def test_geo_window() -> None:
    assert StrategyFactory.create_geo_strategy().get_program_config().geo_sgd_need_push_nums == 100
    strategy = StrategyFactory.create_geo_strategy(update_frequency=400)
    assert strategy.get_program_config().geo_sgd_need_push_nums == 400
    for wrong in (0, -1, 1.5, True, "400"):
        with pytest.raises(ConfigError, match="update_frequency"):
            StrategyFactory.create_geo_strategy(wrong)  # type: ignore[arg-type]


def test_debug_options_have_defaults() -> None:
    strategy = StrategyFactory.create_async_strategy()
    assert strategy.get_debug_opt() is None
    strategy.set_debug_opt({"dump_fields": ["loss"]})
    found = strategy.get_debug_opt()
    assert found is not None
    assert (found["dump_fields"], found["dump_file_num"]) == (["loss"], 16)


def bare_config(**fields: object) -> DistributeTranspilerConfig:
    config = DistributeTranspilerConfig()
    for name, value in fields.items():
        setattr(config, name, value)
    return config


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (None, SyncStrategy),
        (bare_config(), SyncStrategy),
        (bare_config(sync_mode=False), HalfAsyncStrategy),
        (bare_config(sync_mode=False, runtime_split_send_recv=True), AsyncStrategy),
        (
            bare_config(sync_mode=False, runtime_split_send_recv=True, half_async=True),
            HalfAsyncStrategy,
        ),
        (
            bare_config(sync_mode=False, runtime_split_send_recv=True, geo_sgd_mode=True),
            GeoStrategy,
        ),
    ],
)
def test_bare_config_means_a_strategy(
    given: DistributeTranspilerConfig | None, wanted: type[DistributedStrategy]
) -> None:
    strategy = strategy_from(given)
    assert type(strategy) is wanted
    assert given is None or strategy.get_program_config() is given
    assert imposed(strategy) == IMPOSED[strategy.mode_name]


def test_strategy_is_taken_as_it_is_and_a_foreign_type_refused() -> None:
    strategy = StrategyFactory.create_geo_strategy()
    assert strategy_from(strategy) is strategy
    with pytest.raises(TypeError, match="got str"):
        strategy_from("sync")  # type: ignore[arg-type]


def test_defaults_of_execution_and_build() -> None:
    assert ExecutionStrategy().use_experimental_executor
    assert ExecutionStrategy().num_threads == 0
    build = BuildStrategy()
    assert build.fuse_all_reduce_ops
    assert build.memory_optimize is None
    assert build.trainers_endpoints == []
    assert build.gradient_scale_strategy is BuildStrategy.GradientScaleStrategy.CoeffNumDevice


def test_server_runtime_config_from_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLAGS_rpc_get_thread_num", "3")
    config = ServerRuntimeConfig()
    assert (config.rpc_send_thread_num, config.rpc_get_thread_num) == (12, 3)
    assert "rpc_get_thread_num" in repr(config)
    config._rpc_prefetch_thread_num = 5
    assert config.rpc_prefetch_thread_num == 5
    with pytest.raises(ConfigError, match=r"ServerRuntimeConfig.rpc_get_thread_num must be"):
        config.rpc_get_thread_num = 0
    monkeypatch.setenv("FLAGS_rpc_get_thread_num", "many")
    with pytest.raises(ConfigError, match="FLAGS_rpc_get_thread_num must be"):
        ServerRuntimeConfig()


def test_strategy_chooses_mode_and_threads() -> None:
    fleet = Fleet()
    fleet.init()
    model = nn.Sequential(SparseEmbedding("ads", 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    strategy = StrategyFactory.create_geo_strategy(update_frequency=7)
    distributed = distributed_optimizer(fleet, optimizer, strategy, model=model)
    fleet.init_worker()
    assert fleet.model.mode.name == "geo"
    with fleet.step():
        distributed.minimize(model(torch.arange(3)).sum())
    with pytest.raises(ConfigError, match=r"got \[3, 1\]; reduce it with .mean"), fleet.step():
        distributed.minimize(model(torch.arange(3)))
    fleet.stop_worker()


def test_a_fleet_without_a_role_is_refused() -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"call fleet.init\(\) first"):
        distributed_optimizer(Fleet(), optimizer, model=model)
