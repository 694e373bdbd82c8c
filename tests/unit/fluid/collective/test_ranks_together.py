"""What ranks do together, seen from one program."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests import rank_programs
from tests.rank_processes import RankProcesses

if TYPE_CHECKING:
    from sparsefleet.collective import World


@pytest.fixture(scope="module")
def ranks() -> Iterator[RankProcesses]:
    with RankProcesses(*rank_programs.PRELOAD) as processes:
        yield processes


class Job:
    """A rank's part of the training of `rank_programs.digits`."""

    def __init__(self, world: World, settings: dict[str, Any], rate: float = 0.5, **model: Any):
        from sparsefleet import fluid

        self.world = world
        self.fleet = rank_programs.fleet_of(world)
        self.main = fluid.default_main_program()
        fluid.default_startup_program().random_seed = 7
        self.loss = rank_programs.digits(**model)
        self.strategy = rank_programs.strategy_of(settings)
        optimizer = fluid.optimizer.SGD(rate)
        self.fleet.distributed_optimizer(optimizer, self.strategy).minimize(self.loss)
        self.exe = fluid.Executor(fluid.CPUPlace())
        self.exe.run(fluid.default_startup_program())

    def step(self, number: int, program: Any = None) -> float:
        batch = rank_programs.digits_batch(number, range(self.world.rank, self.world.rank + 1))
        chosen = self.fleet.main_program if program is None else program
        return float(self.exe.run(chosen, feed=batch, fetch_list=[self.loss])[0][0])

    @property
    def role(self) -> Any:
        if self.main._distributed is not None:
            return self.main._distributed
        assert self.fleet.main_program is not None
        return self.fleet.main_program._compiled._rank.role

    def parameters(self) -> dict[str, list[float]]:
        return rank_programs.parameters_of(self.main)


def assert_equal_over_ranks(found: list[dict[str, Any]]) -> None:
    for rank in found:
        assert rank["parameters"] == found[0]["parameters"]


# -- traffic ----------------------------------------------------------------------------------------


def count_all_reduces(world: World, kinds: list[dict[str, Any]]) -> list[Any]:
    """All-reduces of a step, and the bytes in them, for each strategy."""
    found = []
    for settings in kinds:
        with rank_programs.own_programs():
            job = Job(world, settings)
            job.step(0)
            before = job.role.traffic.calls_of("all_reduce")
            job.step(1)
            found.append(job.role.traffic.calls_of("all_reduce") - before)
            job.fleet.settle()
    return found


def test_a_layer_travels_in_one_all_reduce_or_each_gradient_in_its_own(
    ranks: RankProcesses,
) -> None:
    kinds = [{"fuse_all_reduce_ops": True}, {"fuse_all_reduce_ops": False}]
    assert ranks.run(count_all_reduces, 2, kinds) == [[2, 4], [2, 4]]


def test_flags_of_the_environment_join_layers(ranks: RankProcesses) -> None:
    flags = {"FLAGS_fuse_parameter_memory_size": "16"}
    assert ranks.run(count_all_reduces, 2, [{}], environment=flags) == [[1], [1]]


def train_on_nodes(world: World, settings: dict[str, Any]) -> dict[str, Any]:
    with rank_programs.own_programs():
        job = Job(world, settings)
        losses = [job.step(number) for number in range(2)]
        traffic = job.role.traffic
        return {
            "losses": losses,
            "parameters": job.parameters(),
            "across": traffic.sent_across_nodes_bytes,
        }


def test_levels_and_rings_change_nothing_but_the_traffic(ranks: RankProcesses) -> None:
    flat = ranks.run(train_on_nodes, 4, {"nccl_comm_num": 2}, ranks_per_node=2)
    levels = {"nccl_comm_num": 2, "use_hierarchical_allreduce": True}
    nodes = ranks.run(train_on_nodes, 4, levels, ranks_per_node=2)
    assert_equal_over_ranks(flat)
    assert_equal_over_ranks(nodes)
    for name, values in flat[0]["parameters"].items():
        np.testing.assert_allclose(nodes[0]["parameters"][name], values, atol=1e-6)
    assert sum(rank["across"] for rank in nodes) < sum(rank["across"] for rank in flat)


# -- local SGD --------------------------------------------------------------------------------------


def train_alone_and_meet(world: World) -> dict[str, Any]:
    """Two steps together, then meetings after every second one."""
    with rank_programs.own_programs():
        job = Job(
            world, {"use_local_sgd": True, "local_sgd_is_warm_steps": 2, "local_sgd_steps": 2}
        )
        calls, meetings, parameters = [], [], []
        for number in range(7):
            job.step(number)
            calls.append(job.role.traffic.calls)
            meetings.append(job.role.num_meetings)
            parameters.append(job.parameters())
        warnings: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: warnings.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("sparsefleet.fluid").addHandler(handler)
        job.role.before_saving(None)
        job.fleet.settle()
        job.role.before_saving(None)
        return {
            "calls": calls,
            "meetings": meetings,
            "steps": parameters,
            "parameters": job.parameters(),
            "warnings": warnings,
        }


def test_local_sgd_warms_up_then_meets_every_second_step(ranks: RankProcesses) -> None:
    found = ranks.run(train_alone_and_meet, 2)
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
    assert "after 1 steps of its own" in found[0]["warnings"][0]


def loop_of_the_script(world: World) -> dict[str, Any]:
    """The script itself runs what averages, or what does not."""
    with rank_programs.own_programs():
        job = Job(world, {"use_local_sgd": True})
        equal = []
        for number in range(4):
            job.step(number, job.fleet._origin_program if number % 2 == 0 else None)
            equal.append(job.parameters())
        return {"steps": equal, "parameters": job.parameters()}


def test_a_script_may_choose_when_to_average(ranks: RankProcesses) -> None:
    one, other = ranks.run(loop_of_the_script, 2)
    same = [a == b for a, b in zip(one["steps"], other["steps"], strict=True)]
    assert same == [False, True, False, True]


def adapt_interval(world: World) -> list[int]:
    with rank_programs.own_programs():
        settings = {"use_local_sgd": True, "local_sgd_steps": 3, "local_sgd_adaptive": True}
        job = Job(world, settings)
        for number in range(9):
            job.step(number % 2)
        return [job.role.num_meetings, job.role._averaging.interval]


def test_an_adaptive_interval_follows_the_loss(ranks: RankProcesses) -> None:
    found = ranks.run(adapt_interval, 2)
    assert found[0] == found[1]
    assert found[0][0] >= 3


# -- uneven data ------------------------------------------------------------------------------------


def train_unevenly(world: World, settings: dict[str, Any], table: bool) -> dict[str, Any]:
    """Rank 0 has 2 batches, rank 1 has 4, in each of two passes; rank 2, if there is one, none."""
    from sparsefleet import fluid

    with rank_programs.own_programs():
        count = (2, 4, 0)[world.rank]
        fleet = rank_programs.fleet_of(world)
        fluid.default_startup_program().random_seed = 7
        loss = rank_programs.clicks() if table else rank_programs.digits()
        batch = rank_programs.clicks_batch if table else rank_programs.digits_batch
        block = fluid.default_main_program().global_block()
        feeds = [block.var(name) for name in batch(0, range(1))]
        loader = fluid.io.DataLoader.from_generator(feeds, capacity=2, iterable=False)
        one = range(world.rank, world.rank + 1)
        loader.set_batch_generator(
            lambda: (list(batch(number, one).values()) for number in range(count))
        )
        optimizer = fluid.optimizer.Adam(0.05)
        fleet.distributed_optimizer(optimizer, rank_programs.strategy_of(settings)).minimize(loss)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(fluid.default_startup_program())
        steps = 0
        for _ in range(2):
            loader.start()
            with contextlib.suppress(fluid.core.EOFException):
                while True:
                    exe.run(fleet.main_program, fetch_list=[loss])
                    steps += 1
            loader.reset()
        found = rank_programs.parameters_of(fluid.default_main_program())
        return {"steps": steps, "parameters": found}


@pytest.mark.parametrize(
    ("settings", "table", "size"),
    [({}, False, 3), ({}, True, 2), ({"use_local_sgd": True, "local_sgd_steps": 3}, False, 2)],
)
def test_ranks_with_less_data_wait_for_the_others(
    ranks: RankProcesses, settings: dict[str, Any], table: bool, size: int
) -> None:
    found = ranks.run(train_unevenly, size, settings, table)
    assert [rank["steps"] for rank in found] == [4, 8, 0][:size]
    assert_equal_over_ranks(found)


# -- batch norm, mixed precision, recompute ---------------------------------------------------------


def train_with(world: World, settings: dict[str, Any], model: dict[str, Any]) -> dict[str, Any]:
    with rank_programs.own_programs():
        job = Job(world, settings, **model)
        losses = [job.step(number) for number in range(3)]
        return {"losses": losses, "parameters": job.parameters()}


def test_synchronised_batch_norm_is_that_of_all_examples(ranks: RankProcesses) -> None:
    from sparsefleet import fluid

    found = ranks.run(train_with, 2, {"sync_batch_norm": True}, {"with_norm": True})
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
    plain = ranks.run(train_with, 2, {}, {})
    half = ranks.run(train_with, 2, {"use_amp": True, "amp_loss_scaling": 8.0}, {})
    assert_equal_over_ranks(half)
    np.testing.assert_allclose(half[0]["losses"], plain[0]["losses"], rtol=0.05)
    assert half[0]["losses"] != plain[0]["losses"]


# -- layers and failures ----------------------------------------------------------------------------


def use_layers(world: World) -> list[Any]:
    from sparsefleet import fluid

    layers = fluid.layers.collective
    with rank_programs.own_programs():
        fleet = rank_programs.fleet_of(world)
        x = fluid.data("x", [2, 1])
        x.stop_gradient = False
        total = layers._c_allreduce(x)
        largest = layers._allreduce(x, reduce_type="max")
        rows = layers._c_allgather(x, fleet.worker_num())
        part = layers._c_reducescatter(rows * rows, world.size)
        weighed = fluid.layers.reduce_sum(rows * (world.rank + 1.0))
        (gradient,) = fluid.gradients(weighed, x)
        first = layers._c_sync_comm_stream(layers._c_broadcast(x + 1.0, root=1), 0)
        values = np.array([[1.0], [2.0]], np.float32) * (world.rank + 1)
        found = fluid.Executor().run(
            feed={"x": values}, fetch_list=[total, largest, rows, part, gradient, first]
        )
        sums = np.zeros(1)
        fleet.all_reduce_worker(np.array([world.rank + 1.0]), sums)
        fleet.barrier_worker()
        return [np.asarray(each).reshape(-1).tolist() for each in [*found, sums]]


def test_layers_put_ranks_together(ranks: RankProcesses) -> None:
    one, other = ranks.run(use_layers, 2)
    assert one[0] == other[0] == [3.0, 6.0]
    assert one[1] == [2.0, 4.0]
    assert one[2] == [1.0, 2.0, 2.0, 4.0]
    assert (one[3], other[3]) == ([2.0, 8.0], [8.0, 32.0])
    assert one[4] == other[4] == [3.0, 3.0]
    assert one[5] == other[5] == [3.0, 5.0]
    assert one[6] == [3.0]


def fail_in_one(world: World) -> str:
    from sparsefleet.errors import WorkerError

    with rank_programs.own_programs():
        job = Job(world, {})
        job.step(0)
        try:
            if world.rank == 1:
                job.exe.run(
                    job.fleet.main_program,
                    feed={"x": np.ones((4, 16), "float32"), "y": np.full((4, 1), 9)},
                )
            job.step(1)
        except (WorkerError, ValueError, IndexError, RuntimeError) as error:
            return f"{type(error).__name__}: {error}"
    return ""


def test_a_rank_that_fails_does_not_leave_the_others_waiting(ranks: RankProcesses) -> None:
    one, other = ranks.run(fail_in_one, 2)
    assert "ProgramError" in other
    assert "WorkerError" in one
    assert "1" in one


# -- Fluid's older ways -----------------------------------------------------------------------------


def train_transpiled(world: World, way: str) -> dict[str, Any]:
    from sparsefleet import fluid

    with rank_programs.own_programs():
        rank_programs.fleet_of(world)
        endpoints = rank_programs.endpoints_of(world)
        main, startup = fluid.default_main_program(), fluid.default_startup_program()
        startup.random_seed = 7 + world.rank
        loss = rank_programs.digits()
        fluid.optimizer.SGD(0.5).minimize(loss)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        config = fluid.DistributeTranspilerConfig()
        config.mode = "collective" if way == "collective" else "nccl2"
        config.collective_mode = "grad_allreduce" if way == "collective" else None
        meeting = startup if way == "collective" else fluid.Program()
        fluid.DistributeTranspiler(config).transpile(
            world.rank,
            main,
            trainers=",".join(endpoints),
            startup_program=meeting,
            current_endpoint=endpoints[world.rank],
        )
        exe.run(meeting)
        one = range(world.rank, world.rank + 1)
        if way == "executor":
            parallel = fluid.ParallelExecutor(
                False, loss.name, main, num_trainers=world.size, trainer_id=world.rank
            )
            losses = [
                parallel.run([loss.name], feed=rank_programs.digits_batch(number, one))[0]
                for number in range(3)
            ]
        else:
            program: Any = main
            if way == "compiled":
                build = fluid.BuildStrategy()
                build.num_trainers, build.trainer_id = world.size, world.rank
                build.gradient_scale_strategy = build.GradientScaleStrategy.One
                program = fluid.CompiledProgram(main).with_data_parallel(loss.name, build)
            losses = [
                exe.run(program, feed=rank_programs.digits_batch(number, one), fetch_list=[loss])[0]
                for number in range(3)
            ]
        return {
            "losses": [float(value[0]) for value in losses],
            "parameters": rank_programs.parameters_of(main),
        }


def test_transpiled_programs_train_together(ranks: RankProcesses) -> None:
    found = {way: ranks.run(train_transpiled, 2, way) for way in ("collective", "executor")}
    for way in found.values():
        assert_equal_over_ranks(way)
    assert found["collective"][0]["losses"] == found["executor"][0]["losses"]


def test_gradients_are_summed_where_the_strategy_says_one(ranks: RankProcesses) -> None:
    found = ranks.run(train_transpiled, 2, "compiled")
    assert_equal_over_ranks(found)
    twice = ranks.run(train_with_rate, 2, 1.0)
    np.testing.assert_allclose(found[0]["losses"], twice[0]["losses"], rtol=1e-5)


def train_with_rate(world: World, rate: float) -> dict[str, Any]:
    with rank_programs.own_programs():
        job = Job(world, {}, rate)
        return {"losses": [job.step(number) for number in range(3)]}
