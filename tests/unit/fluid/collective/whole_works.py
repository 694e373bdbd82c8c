"""The work of the ranks in `test_whole_trainings`: functions that `RankProcesses` runs in each."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tests.support import rank_programs
from tests.unit.fluid.collective.rank_works import Job

if TYPE_CHECKING:
    from sparsefleet.collective import World


def train_from_files(world: World, folder: str) -> dict[str, Any]:
    """Two passes over a Dataset; rank 0 has 2 batches in its file, rank 1 has 4."""
    from sparsefleet import fluid

    own = range(world.rank, world.rank + 1)
    path = Path(folder) / f"part-{world.rank}"
    lines = []
    for number in range((2, 4)[world.rank]):
        batch = rank_programs.digits_batch(number, own)
        for x, y in zip(batch["x"], batch["y"], strict=True):
            lines.append(f"16 {' '.join(map(str, x))} 1 {y[0]}\n")
    path.write_text("".join(lines))
    with rank_programs.own_programs():
        job = Job(world, {})
        dataset = fluid.DatasetFactory().create_dataset("QueueDataset")
        block = job.main.global_block()
        dataset.set_use_var([block.var("x"), block.var("y")])
        dataset.set_batch_size(rank_programs.ROWS)
        dataset.set_pipe_command("cat")
        dataset.set_filelist([str(path)])
        for _ in range(2):
            job.exe.train_from_dataset(job.fleet.main_program, dataset)
        return {"parameters": job.parameters(), "calls": job.role.traffic.calls_of("all_reduce")}


def train_in_half_with_recompute(world: World) -> dict[str, Any]:
    """Gradients of rank 1 overflow in steps 1 to 3; return who changed, and the scale after each
    step.
    """
    from sparsefleet import fluid

    with rank_programs.own_programs():
        fleet = rank_programs.fleet_of(world)
        main = fluid.default_main_program()
        fluid.default_startup_program().random_seed = 7
        x, y = fluid.data("x", [None, 16]), fluid.data("y", [None, 1], "int64")
        kept = fluid.layers.dropout(fluid.layers.fc(x, 8, act="tanh"), 0.2, seed=3)
        scores = fluid.layers.fc(fluid.layers.fc(kept, 8, act="tanh"), 4)
        loss = fluid.layers.mean(fluid.layers.softmax_with_cross_entropy(scores, y))
        strategy = rank_programs.strategy_of({"use_amp": True, "amp_loss_scaling": 8.0})
        strategy.forward_recompute, strategy.recompute_checkpoints = True, [kept]
        optimizer = fleet.distributed_optimizer(fluid.optimizer.Adam(0.05), strategy)
        optimizer.minimize(loss)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(fluid.default_startup_program())
        scale = optimizer._optimizer.get_loss_scaling()
        changes, scales = [], []
        for number in range(5):
            batch = rank_programs.digits_batch(number, range(world.rank, world.rank + 1))
            if world.rank == 1 and number in (1, 2, 3):
                batch["x"] *= np.float32(np.inf)
            before = rank_programs.parameters_of(main)
            (found,) = exe.run(fleet.main_program, feed=batch, fetch_list=[scale])
            changes.append(rank_programs.parameters_of(main) != before)
            scales.append(round(float(found[0]), 3))
        found = rank_programs.parameters_of(main)
        return {"changes": changes, "scales": scales, "parameters": found}


def go_on_from_check_point(world: World, folder: str) -> dict[str, Any]:
    """Four steps, saved after the second; then the last two of them from the check point."""
    from sparsefleet.fluid.incubate.fleet.collective import TrainStatus

    settings = {"use_amp": True}
    with rank_programs.own_programs():
        job = Job(world, settings)
        for number in range(4):
            job.step(number)
            if number == 1:
                if world.rank == 0:
                    job.fleet.save_check_point(job.exe, folder, TrainStatus(0))
                job.fleet.barrier_worker()
        whole = job.parameters()
    with rank_programs.own_programs():
        job = Job(world, settings)
        status = job.fleet.load_check_point(job.exe, folder, world.rank)
        for number in (2, 3):
            job.step(number)
        assert status is not None
        return {"next": status.next(), "whole": whole, "parameters": job.parameters()}


def normalise_unevenly(world: World) -> dict[str, Any]:
    """Three passes; rank 0 has 1 batch in each, rank 1 has 2."""
    from sparsefleet import fluid

    with rank_programs.own_programs():
        job = Job(world, {"sync_batch_norm": True}, with_norm=True)
        block = job.main.global_block()
        loader = fluid.io.DataLoader.from_generator(
            [block.var("x"), block.var("y")], capacity=2, iterable=False
        )
        own = range(world.rank, world.rank + 1)
        loader.set_batch_generator(
            lambda: (
                list(rank_programs.digits_batch(number, own).values())
                for number in range(1 + world.rank)
            )
        )
        groups = []
        for _ in range(3):
            loader.start()
            with contextlib.suppress(fluid.core.EOFException):
                while True:
                    job.exe.run(job.fleet.main_program)
            loader.reset()
            assert world._connections is not None
            groups.append(len(world._connections._groups))
        return {"groups": groups, "parameters": job.parameters()}


def lose_one_in_a_norm(world: World) -> str:
    """Rank 1 ends between its forward pass and what rank 0 waits for."""
    import os

    from sparsefleet.errors import PeerLostError

    with rank_programs.own_programs():
        job = Job(world, {"sync_batch_norm": True}, with_norm=True)
        job.step(0)
        if world.rank == 1:
            job.role._give_up = lambda: os._exit(3)
            with contextlib.suppress(Exception):
                bad = {"x": np.ones((4, 16), "float32"), "y": np.full((4, 1), 9)}
                job.exe.run(job.fleet.main_program, feed=bad)
        try:
            job.step(1)
        except PeerLostError as error:
            return str(error)
    return ""


def end_twice(world: World) -> list[int]:
    """Rank 1 also closes its Executor; both report the end of the script."""
    with rank_programs.own_programs():
        job = Job(world, {})
        for number in range(2 + world.rank):
            job.step(number)
        if world.rank == 1:
            job.exe.close()
        job.fleet.ranks._end_at_exit()
        return [job.role.traffic.calls]


def evaluate_alone(world: World, settings: dict[str, Any]) -> dict[str, Any]:
    """Rank 0 runs test programs, created in every way, between steps of both ranks."""
    from sparsefleet import fluid

    with rank_programs.own_programs():
        job = Job(world, {"sync_batch_norm": True, **settings}, with_norm=True)
        job.step(0)
        losses = []
        if world.rank == 0:
            origin = job.fleet._origin_program
            assert origin is not None
            test = origin.clone(for_test=True)
            build = fluid.BuildStrategy()
            build.num_trainers, build.sync_batch_norm = world.size, True
            ways = [
                test,
                job.main.clone(for_test=True),
                fluid.CompiledProgram(test).with_data_parallel(build_strategy=build),
            ]
            losses = [job.step(9, way) for way in ways]
        job.step(1)
        return {"losses": losses, "parameters": job.parameters()}
