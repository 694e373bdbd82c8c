"""A program that ranks train together against the same one in a single process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests import rank_programs
from tests.rank_processes import RankProcesses

if TYPE_CHECKING:
    from sparsefleet.collective import World

STEPS = 4


@pytest.fixture(scope="module")
def ranks() -> Iterator[RankProcesses]:
    with RankProcesses(*rank_programs.PRELOAD) as processes:
        yield processes


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


def train(world: World | None, model: str, kind: str, settings: dict[str, Any], size: int) -> Any:
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
            for step in range(STEPS)
        ]
        return {"losses": losses, "parameters": rank_programs.parameters_of(main)}


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
    alone = train(None, model, kind, {}, size)
    found = ranks.run(train, size, model, kind, settings, size)
    losses = np.mean([rank["losses"] for rank in found], axis=0)
    np.testing.assert_allclose(losses, alone["losses"], rtol=1e-5)
    for rank in found:
        assert rank["parameters"] == found[0]["parameters"]
    for name, values in alone["parameters"].items():
        np.testing.assert_allclose(found[0]["parameters"][name], values, rtol=1e-4, atol=1e-6)
