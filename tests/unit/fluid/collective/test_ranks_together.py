"""What ranks do together, as one program sees it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.parity.guide_blocks import OURS
from tests.support import rank_programs
from tests.support.rank_processes import RankProcesses
from tests.unit.fluid.collective import rank_works


@pytest.fixture(scope="module")
def ranks() -> Iterator[RankProcesses]:
    with RankProcesses(*rank_programs.PRELOAD) as processes:
        yield processes


def assert_equal_over_ranks(found: list[dict[str, Any]]) -> None:
    for rank in found:
        assert rank["parameters"] == found[0]["parameters"]


# -- traffic


def test_a_layer_travels_in_one_all_reduce_or_each_gradient_in_its_own(
    ranks: RankProcesses,
) -> None:
    kinds = [{"fuse_all_reduce_ops": True}, {"fuse_all_reduce_ops": False}]
    assert ranks.run(rank_works.count_all_reduces, 2, kinds) == [[2, 4], [2, 4]]


def test_flags_of_the_environment_join_layers(ranks: RankProcesses) -> None:
    flags = {"FLAGS_fuse_parameter_memory_size": "16"}
    assert ranks.run(rank_works.count_all_reduces, 2, [{}], environment=flags) == [[1], [1]]


def test_levels_and_rings_change_nothing_but_the_traffic(ranks: RankProcesses) -> None:
    flat = ranks.run(rank_works.train_on_nodes, 4, {"nccl_comm_num": 2}, ranks_per_node=2)
    levels = {"nccl_comm_num": 2, "use_hierarchical_allreduce": True}
    nodes = ranks.run(rank_works.train_on_nodes, 4, levels, ranks_per_node=2)
    assert_equal_over_ranks(flat)
    assert_equal_over_ranks(nodes)
    for name, values in flat[0]["parameters"].items():
        np.testing.assert_allclose(nodes[0]["parameters"][name], values, atol=1e-6)
    assert sum(rank["across"] for rank in nodes) < sum(rank["across"] for rank in flat)


# -- against one process


@pytest.mark.parametrize(
    ("model", "kind", "settings", "size"),
    [
        ("digits", "sgd", {}, 2),
        ("digits", "clipped_momentum", {"fuse_all_reduce_ops": False}, 2),
        ("digits", "adam", {"mode": "collective", "collective_mode": "grad_allreduce"}, 2),
        ("digits", "sgd", {"use_local_sgd": True}, 2),
        ("clicks", "sgd", {}, 2),
        ("clicks", "adam", {}, 4),
    ],
)
def test_ranks_train_as_one_process_on_all_examples(
    ranks: RankProcesses, model: str, kind: str, settings: dict[str, Any], size: int
) -> None:
    alone = rank_works.train_as_one(None, model, kind, {}, size)
    found = ranks.run(rank_works.train_as_one, size, model, kind, settings, size)
    losses = np.mean([rank["losses"] for rank in found], axis=0)
    np.testing.assert_allclose(losses, alone["losses"], rtol=1e-5)
    for rank in found:
        assert rank["parameters"] == found[0]["parameters"]
    for name, values in alone["parameters"].items():
        np.testing.assert_allclose(found[0]["parameters"][name], values, rtol=1e-4, atol=1e-6)


# -- local SGD


def test_local_sgd_warms_up_then_meets_every_second_step(ranks: RankProcesses) -> None:
    found = ranks.run(rank_works.train_alone_and_meet, 2)
    assert found[0]["meetings"] == [0, 0, 0, 1, 1, 2, 2]
    one, other = found[0]["steps"], found[1]["steps"]
    assert [a == b for a, b in zip(one, other, strict=True)] == [
        True, True, False, True, False, True, False,
    ]  # fmt: skip
    calls = found[0]["calls"]
    assert calls[2] == calls[1]
    assert calls[4] == calls[3]
    assert_equal_over_ranks(found)
    assert len(found[0]["warnings"]) == 1
    assert "1 steps after the last averaging" in found[0]["warnings"][0]


def test_a_script_may_choose_when_to_average(ranks: RankProcesses) -> None:
    one, other = ranks.run(rank_works.loop_of_the_script, 2)
    same = [a == b for a, b in zip(one["steps"], other["steps"], strict=True)]
    assert same == [False, True, False, True]


def test_an_adaptive_interval_follows_the_loss(ranks: RankProcesses) -> None:
    found = ranks.run(rank_works.adapt_interval, 2)
    assert found[0] == found[1]
    assert found[0][0] >= 3


# -- uneven data


@pytest.mark.parametrize(
    ("settings", "table", "size"),
    [({}, False, 3), ({}, True, 2), ({"use_local_sgd": True, "local_sgd_steps": 3}, False, 2)],
)
def test_ranks_with_less_data_wait_for_the_others(
    ranks: RankProcesses, settings: dict[str, Any], table: bool, size: int
) -> None:
    found = ranks.run(rank_works.train_unevenly, size, settings, table)
    assert [rank["steps"] for rank in found] == [4, 8, 0][:size]
    assert_equal_over_ranks(found)


# -- batch norm, mixed precision, recompute


def test_synchronised_batch_norm_is_that_of_all_examples(ranks: RankProcesses) -> None:
    from sparsefleet import fluid

    found = ranks.run(rank_works.train_with, 2, {"sync_batch_norm": True}, {"with_norm": True})
    fluid.default_startup_program().random_seed = 7
    loss = rank_programs.digits(with_norm=True)
    fluid.optimizer.SGD(0.5).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    losses = [
        float(exe.run(feed=rank_programs.digits_batch(number, range(2)), fetch_list=[loss])[0][0])
        for number in range(3)
    ]
    both = np.mean([rank["losses"] for rank in found], axis=0)
    np.testing.assert_allclose(both, losses, rtol=1e-5)
    assert_equal_over_ranks(found)


def test_half_precision_leaves_ranks_equal(ranks: RankProcesses) -> None:
    plain = ranks.run(rank_works.train_with, 2, {}, {})
    half = ranks.run(rank_works.train_with, 2, {"use_amp": True, "amp_loss_scaling": 8.0}, {})
    assert_equal_over_ranks(half)
    np.testing.assert_allclose(half[0]["losses"], plain[0]["losses"], rtol=0.05)
    assert half[0]["losses"] != plain[0]["losses"]


# -- layers and failures


def test_layers_put_ranks_together(ranks: RankProcesses) -> None:
    one, other = ranks.run(rank_works.use_layers, 2)
    assert one[0] == other[0] == [3.0, 6.0]
    assert one[1] == [2.0, 4.0]
    assert one[2] == [1.0, 2.0, 2.0, 4.0]
    assert (one[3], other[3]) == ([2.0, 8.0], [8.0, 32.0])
    assert one[4] == other[4] == [3.0, 3.0]
    assert one[5] == other[5] == [3.0, 5.0]
    assert one[6] == [3.0]


def test_a_rank_that_fails_does_not_leave_the_others_waiting(ranks: RankProcesses) -> None:
    one, other = ranks.run(rank_works.fail_in_one, 2)
    assert "ProgramError" in other
    assert "WorkerError" in one
    assert "1" in one


# -- Fluid's older ways


def test_transpiled_programs_train_together(ranks: RankProcesses) -> None:
    found = {
        way: ranks.run(rank_works.train_transpiled, 2, way) for way in ("collective", "executor")
    }
    for way in found.values():
        assert_equal_over_ranks(way)
    assert found["collective"][0]["losses"] == found["executor"][0]["losses"]


def test_gradients_are_summed_where_the_strategy_says_one(ranks: RankProcesses) -> None:
    found = ranks.run(rank_works.train_transpiled, 2, "compiled")
    assert_equal_over_ranks(found)
    twice = ranks.run(rank_works.train_with_rate, 2, 1.0)
    np.testing.assert_allclose(found[0]["losses"], twice[0]["losses"], rtol=1e-5)


# -- the guide


def test_the_block_of_the_guide_trains_on_ranks(ranks: RankProcesses) -> None:
    text = OURS[2, 1]
    repairs = [
        ("exe_st.num_threads", "exec_strategy.num_threads"),  # a name that is not defined
        ("             ...\n", ""),
        ("params = model.params", "params = None"),
        ("for pass_id", "exe.run(startup_prog)\nmain_prog = fleet.main_program\nfor pass_id"),
        ("while True:", "while batch_id < 41:\n        batch_id += 1"),
        # the second argument of run is the feed, and [] is not a program
        ("exe.run(main_prog, fetch_list)", "exe.run(main_prog, feed, fetch_list)"),
        ("exe.run([])", "exe.run(main_prog, feed)"),
    ]
    for slip, meant in repairs:
        assert slip in text
        text = text.replace(slip, meant)
    found = ranks.run(rank_works.run_guide_block, 4, text, ranks_per_node=2)
    assert_equal_over_ranks(found)
    assert all(rank["loss"] < 0.3 for rank in found), "of 1.0 at first"
    assert all(rank["rings"] == 2 for rank in found), "there are two machines"
