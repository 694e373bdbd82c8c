"""The work of the ranks in `test_ranks_together`: functions that `RankProcesses` runs in each."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

import numpy as np
from tests.support import rank_programs

if TYPE_CHECKING:
    from sparsefleet.collective import World


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


def count_all_reduces(world: World, kinds: list[dict[str, Any]]) -> list[Any]:
    """Return the all-reduces of a step, and their bytes, for each strategy."""
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


def _optimizer(kind: str) -> Any:
    from sparsefleet import fluid

    if kind == "sgd":
        return fluid.optimizer.SGD(0.5)
    if kind == "clipped_momentum":
        rate = fluid.layers.exponential_decay(0.5, 2, 0.7)
        return fluid.optimizer.Momentum(
            rate,
            0.9,
            regularization=fluid.regularizer.L2Decay(0.01),
            grad_clip=fluid.clip.GradientClipByGlobalNorm(0.2),
        )
    return fluid.optimizer.Adam(0.05)


def train_as_one(
    world: World | None, model: str, kind: str, settings: dict[str, Any], size: int
) -> Any:
    """Losses and parameters; in one process (world None) on the examples of all `size` ranks."""
    from sparsefleet import fluid

    with rank_programs.own_programs():
        main, startup = fluid.default_main_program(), fluid.default_startup_program()
        startup.random_seed = 7 if world is None or world.rank == 0 else 8
        loss = getattr(rank_programs, model)()
        batch = getattr(rank_programs, f"{model}_batch")
        optimizer = _optimizer(kind)
        parts = range(size)
        if world is None:
            optimizer.minimize(loss)
            program: Any = main
        else:
            fleet = rank_programs.fleet_of(world)
            strategy = rank_programs.strategy_of(settings)
            fleet.distributed_optimizer(optimizer, strategy).minimize(loss)
            program = fleet.main_program
            parts = range(world.rank, world.rank + 1)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        losses = [
            float(exe.run(program, feed=batch(step, parts), fetch_list=[loss])[0][0])
            for step in range(4)
        ]
        return {"losses": losses, "parameters": rank_programs.parameters_of(main)}


def train_alone_and_meet(world: World) -> dict[str, Any]:
    """Train two steps together, then average after every second one."""
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


def loop_of_the_script(world: World) -> dict[str, Any]:
    """The script itself runs the program that averages, or the one that does not."""
    with rank_programs.own_programs():
        job = Job(world, {"use_local_sgd": True})
        equal = []
        for number in range(4):
            job.step(number, job.fleet._origin_program if number % 2 == 0 else None)
            equal.append(job.parameters())
        return {"steps": equal, "parameters": job.parameters()}


def adapt_interval(world: World) -> list[int]:
    with rank_programs.own_programs():
        settings = {"use_local_sgd": True, "local_sgd_steps": 3, "local_sgd_adaptive": True}
        job = Job(world, settings)
        for number in range(9):
            job.step(number % 2)
        return [job.role.num_meetings, job.role._averaging.interval]


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


def train_with(world: World, settings: dict[str, Any], model: dict[str, Any]) -> dict[str, Any]:
    with rank_programs.own_programs():
        job = Job(world, settings, **model)
        losses = [job.step(number) for number in range(3)]
        return {"losses": losses, "parameters": job.parameters()}


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


def train_with_rate(world: World, rate: float) -> dict[str, Any]:
    with rank_programs.own_programs():
        job = Job(world, {}, rate)
        return {"losses": [job.step(number) for number in range(3)]}


def run_guide_block(world: World, text: str) -> dict[str, Any]:
    """Return the variables that a block of the guide on collective training leaves in a rank."""
    from sparsefleet import fluid

    with rank_programs.own_programs():
        draw = np.random.default_rng(world.rank)
        x = fluid.data("x", [None, 4])
        loss = fluid.layers.mean(fluid.layers.square(fluid.layers.fc(x, 1) - 1.0))
        names: dict[str, Any] = {
            "fluid": fluid,
            "fleet": rank_programs.fleet_of(world),
            "DistributedStrategy": rank_programs.DistributedStrategy,
            "main_prog": fluid.default_main_program(),
            "startup_prog": fluid.default_startup_program(),
            "avg_cost": loss,
            "exe": fluid.Executor(fluid.CPUPlace()),
            "optimizer_setting": lambda _: fluid.optimizer.SGD(0.05),
            "feed": {"x": draw.random((8, 4)).astype("float32")},
            "fetch_list": [loss],
            "fetch_frequency": 10,
            "PASS_NUM": 1,
        }
        exec(compile(text, "guide.py", "exec"), names)
        return {
            "loss": float(names["fetched"][0][0]),
            "rings": names["dist_strategy"].nccl_comm_num,
            "parameters": rank_programs.parameters_of(fluid.default_main_program()),
        }
