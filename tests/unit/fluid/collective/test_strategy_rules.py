from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from sparsefleet import fluid
from sparsefleet.collective import World
from sparsefleet.fleet.role_info import RoleInfo
from sparsefleet.fluid.collective.collective_programs import exchange_strategy
from sparsefleet.fluid.collective.ranks import Ranks, worker_role
from sparsefleet.fluid.contrib.mixed_precision import decorate
from sparsefleet.fluid.fleet.collective_strategy import (
    check_conflicts,
    fit_to_ranks,
    rank_strategy,
    wrapped_optimizer,
)
from sparsefleet.fluid.fleet.role_makers import UserDefinedCollectiveRoleMaker
from sparsefleet.fluid.incubate.fleet.collective import Collective, DistributedStrategy

ONE_NODE = ["127.0.0.1:9000", "127.0.0.1:9001"]
TWO_NODES = [f"127.0.0.{node}:{port}" for node in (1, 2) for port in (9000, 9001)]


def strategy_of(**settings: Any) -> DistributedStrategy:
    return DistributedStrategy(**settings)


def sgd() -> Any:
    return fluid.optimizer.SGD(0.1)


@pytest.mark.parametrize(
    ("settings", "optimizer", "message"),
    [
        (
            {"use_local_sgd": True},
            lambda: fluid.optimizer.LambOptimizer(0.1),
            "use_local_sgd and use_lamb",
        ),
        (
            {"use_local_sgd": True},
            lambda: fluid.optimizer.DGCMomentumOptimizer(0.1, 0.9, 0),
            "use_local_sgd and use_dgc",
        ),
        (
            {"use_local_sgd": True},
            lambda: fluid.optimizer.GradientMergeOptimizer(fluid.optimizer.LambOptimizer(0.1), 2),
            "use_local_sgd and use_lamb",
        ),
        ({"use_local_sgd": True, "use_dist_fc": True}, sgd, "use_local_sgd and use_dist_fc"),
        (
            {"use_dist_fc": True},
            lambda: fluid.optimizer.LambOptimizer(0.1),
            "use_dist_fc and use_lamb",
        ),
        ({"use_dist_fc": True}, sgd, "dist_fc_config should be set"),
        ({"collective_mode": "local_sgd"}, sgd, 'under mode "collective" only'),
    ],
)
def test_options_that_exclude_each_other_are_both_named(
    settings: dict[str, Any], optimizer: Callable[[], Any], message: str
) -> None:
    with pytest.raises(AssertionError, match=message):
        check_conflicts(strategy_of(**settings), optimizer())


def test_a_conflict_hides_in_no_wrapper() -> None:
    wrapped = decorate(fluid.optimizer.LambOptimizer(0.1))
    with pytest.raises(AssertionError, match="use_local_sgd and use_lamb"):
        check_conflicts(strategy_of(use_local_sgd=True), wrapped)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mode": "ring"}, '"nccl2" or "collective", got \'ring\''),
        ({"mode": "collective"}, '"grad_allreduce" or "local_sgd", got None'),
        ({"use_dist_fc": True, "dist_fc_config": 1}, "not supported"),
    ],
)
def test_modes_are_checked(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_conflicts(strategy_of(**settings), sgd())


def test_recompute_is_inside_and_mixed_precision_outside() -> None:
    kept = fluid.data("kept", [1])
    strategy = strategy_of(forward_recompute=True, recompute_checkpoints=[kept], use_amp=True)
    optimizer = wrapped_optimizer(strategy, sgd())
    assert type(optimizer).__name__ == "OptimizerWithMixedPrecision"
    assert type(optimizer._optimizer).__name__ == "RecomputeOptimizer"


@pytest.mark.parametrize(
    ("settings", "optimizer", "message"),
    [
        ({"forward_recompute": True}, sgd, "recompute_checkpoints is empty"),
        ({"recompute_checkpoints": ("x",)}, sgd, "a list, got"),
        (
            {"forward_recompute": True, "recompute_checkpoints": ["x"]},
            lambda: decorate(sgd()),
            "OptimizerWithMixedPrecision when you set .*forward_recompute",
        ),
        (
            {"forward_recompute": True, "recompute_checkpoints": ["x"]},
            lambda: fluid.optimizer.RecomputeOptimizer(sgd()),
            "RecomputeOptimizer when you set .*forward_recompute",
        ),
        ({"use_amp": True}, lambda: decorate(sgd()), "MixedPrecision when you set .*use_amp"),
        (
            {"use_amp": True},
            lambda: fluid.optimizer.DGCMomentumOptimizer(0.1, 0.9, 0),
            "DGCMomentumOptimizer when you set .*use_amp",
        ),
    ],
)
def test_an_optimizer_is_not_wrapped_twice(
    settings: dict[str, Any], optimizer: Callable[[], Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        wrapped_optimizer(strategy_of(**settings), optimizer())


def test_one_node_has_one_ring_and_no_levels(caplog: pytest.LogCaptureFixture) -> None:
    strategy = strategy_of(nccl_comm_num=3, use_hierarchical_allreduce=True)
    fit_to_ranks(strategy, Ranks(worker_role(1, ONE_NODE)))
    assert (strategy.nccl_comm_num, strategy.use_hierarchical_allreduce) == (1, False)
    assert (strategy.num_trainers, strategy.trainer_id) == (2, 1)
    assert [record.getMessage() for record in caplog.records] == [
        "nccl_comm_num is set to 1 because there is only 1 node",
        "use_hierarchical_allreduce is set to False because there is only 1 node",
    ]


@pytest.mark.parametrize(
    ("settings", "given", "flag", "wanted"),
    [
        ({"nccl_comm_num": 2}, 0, None, 3),
        ({"nccl_comm_num": 2, "use_hierarchical_allreduce": True}, 0, "1", 5),
        ({"nccl_comm_num": 2}, 7, None, 7),
        ({"nccl_comm_num": 2}, 0, "0", 0),
        ({"nccl_comm_num": 2, "sync_batch_norm": True}, 7, None, 1),
    ],
)
def test_num_threads_is_filled_in_where_the_script_left_it_open(
    settings: dict[str, Any],
    given: int,
    flag: str | None,
    wanted: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.delenv("FLAGS_sync_nccl_allreduce", raising=False)
    if flag is not None:
        monkeypatch.setenv("FLAGS_sync_nccl_allreduce", flag)
    strategy = strategy_of(**settings)
    strategy.exec_strategy.num_threads = given
    fit_to_ranks(strategy, Ranks(worker_role(0, TWO_NODES)))
    assert strategy.exec_strategy.num_threads == wanted
    rings = 1 if strategy.sync_batch_norm else 2
    assert strategy.nccl_comm_num == rings
    assert ("export FLAGS_sync_nccl_allreduce=0" in caplog.text) == (wanted == 5)


def test_reduce_says_that_it_fuses_nothing(caplog: pytest.LogCaptureFixture) -> None:
    strategy = strategy_of(reduce_strategy=fluid.BuildStrategy.ReduceStrategy.Reduce)
    assert not exchange_strategy(strategy, Ranks(worker_role(0, TWO_NODES))).fuse_all_reduce
    assert "fuse_all_reduce_ops has no effect with ReduceStrategy.Reduce" in caplog.text


@pytest.mark.parametrize(("inner", "message"), [(4, "must be less than 4"), (3, "does not divide")])
def test_nodes_must_be_whole(inner: int, message: str) -> None:
    strategy = strategy_of(
        use_hierarchical_allreduce=True, hierarchical_allreduce_inter_nranks=inner
    )
    with pytest.raises(AssertionError, match=message):
        fit_to_ranks(strategy, Ranks(worker_role(0, TWO_NODES)))


def test_what_ranks_do_follows_from_the_strategy() -> None:
    ranks = Ranks(worker_role(0, TWO_NODES))
    strategy = strategy_of(
        nccl_comm_num=2,
        use_hierarchical_allreduce=True,
        fuse_all_reduce_ops=False,
        collective_mode="local_sgd",
        local_sgd_is_warm_steps=30,
        local_sgd_steps=4,
    )
    found = rank_strategy(strategy, ranks)
    assert (found.num_rings, found.hierarchical, found.ranks_per_node) == (2, True, 2)
    assert not found.fuse_all_reduce
    assert found.local_sgd is not None
    assert (found.local_sgd.warm_steps, found.local_sgd.steps) == (30, 4)


def test_flags_that_a_script_sets_come_before_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sparsefleet.fluid.framework.flags._given", {})
    monkeypatch.setenv("FLAGS_fuse_parameter_memory_size", "8")
    ranks = Ranks(worker_role(0, ONE_NODE))
    assert rank_strategy(strategy_of(), ranks).fuse_bytes() == 8 * 2**20
    fluid.set_flags(
        {"FLAGS_fuse_parameter_memory_size": 16, "FLAGS_fuse_parameter_groups_size": 50}
    )
    found = rank_strategy(strategy_of(), ranks)
    assert (found.fuse_bytes(), found.fuse_groups) == (16 * 2**20, 50)
    fluid.set_flags({"FLAGS_fuse_parameter_memory_size": "much"})
    with pytest.raises(ValueError, match="FLAGS_fuse_parameter_memory_size must be a number"):
        rank_strategy(strategy_of(), ranks)


def test_mode_collective_needs_more_than_one_rank() -> None:
    fleet = Collective()
    fleet.init()
    loss = fluid.layers.mean(fluid.layers.fc(fluid.data("x", [None, 2]), 1))
    optimizer = fleet.distributed_optimizer(sgd(), strategy_of(use_local_sgd=True))
    with pytest.raises(ValueError, match="needs at least 2 endpoints, got 1"):
        optimizer.minimize(loss)


def test_calls_for_servers_warn_and_do_nothing(caplog: pytest.LogCaptureFixture) -> None:
    fleet = Collective()
    fleet.init()
    for call in ("init_worker", "run_worker", "init_server", "run_server", "stop_worker"):
        getattr(fleet, call)()
        assert f"you should not call '{call}'" in caplog.records[-1].getMessage()


def test_a_fleet_without_role_and_a_strategy_of_another_kind_are_refused() -> None:
    loss = fluid.layers.mean(fluid.layers.fc(fluid.data("x", [None, 2]), 1))
    with pytest.raises(RuntimeError, match=r"call fleet\.init"):
        Collective().distributed_optimizer(sgd()).minimize(loss)
    with pytest.raises(TypeError, match=r"collective\.DistributedStrategy"):
        Collective().distributed_optimizer(sgd(), fluid.BuildStrategy())  # type: ignore[arg-type]


def test_alone_a_fleet_has_a_compiled_program_and_a_plain_copy() -> None:
    fleet = Collective()
    fleet.init()
    assert fleet.ranks.role == RoleInfo(kind="local")
    loss = fluid.layers.mean(fluid.layers.fc(fluid.data("x", [None, 2]), 1))
    fleet.distributed_optimizer(sgd()).minimize(loss)
    assert isinstance(fleet.main_program, fluid.CompiledProgram)
    assert fleet._transpiled_program is fluid.default_main_program()
    assert isinstance(fleet._origin_program, fluid.Program)
    assert fleet._origin_program is not fleet._transpiled_program
    exe = fluid.Executor(fluid.CPUPlace())
    with pytest.raises(AssertionError, match="expected a fluid.Program"):
        fleet.save_persistables(exe, "unused", fleet.main_program)  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="expected a fluid.Executor"):
        fleet.save_persistables("no executor", "unused")  # type: ignore[arg-type]


def test_a_deadline_is_the_meetings() -> None:
    ranks = Ranks(worker_role(0, ONE_NODE))
    assert ranks.timeout_s == 300.0
    fit_to_ranks(strategy_of(timeout_s=900.0), ranks)
    fit_to_ranks(strategy_of(), ranks)
    assert ranks.timeout_s == 900.0
    with pytest.raises(ValueError, match="timeout_s must be > 0, got 0"):
        fit_to_ranks(strategy_of(timeout_s=0), ranks)
    met = Ranks(ranks.role, World(0, 2, 2, torch.device("cpu"), timeout_s=60.0))
    with pytest.raises(ValueError, match="ranks are already connected with 60"):
        fit_to_ranks(strategy_of(timeout_s=900.0), met)


def test_a_fleet_that_gets_its_role_again_is_in_the_same_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "sparsefleet.fluid.collective.ranks._present", Ranks(RoleInfo(kind="local"))
    )
    fleets = [Collective(), Collective()]
    for fleet in fleets:
        fleet.init(UserDefinedCollectiveRoleMaker(0, ONE_NODE))
    assert fleets[0].ranks is fleets[1].ranks
