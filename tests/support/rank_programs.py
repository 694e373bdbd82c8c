"""Programs that the ranks of a test train together, and the same in one process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from sparsefleet import fluid
from sparsefleet.collective import World
from sparsefleet.fluid.collective.ranks import Ranks, set_ranks, worker_role
from sparsefleet.fluid.incubate.fleet.collective import Collective, DistributedStrategy

PRELOAD = (
    "torch._dynamo",  # what building a program loads from torch, which takes seconds
    "sparsefleet.fluid.executor",
    "sparsefleet.fluid.operators.collective",
    "sparsefleet.fluid.incubate.fleet.collective",
)
"""For `RankProcesses`."""

ROWS = 4
"""Examples per rank and step."""


def endpoints_of(world: World) -> list[str]:
    """Return endpoints of ranks that may be on several nodes."""
    return [
        f"127.0.0.{1 + rank // world.ranks_per_node}:{9000 + rank}" for rank in range(world.size)
    ]


def fleet_of(world: World) -> Collective:
    """Return the fleet of a rank that has joined the others."""
    from sparsefleet.fluid.fleet.role_makers import UserDefinedCollectiveRoleMaker

    endpoints = endpoints_of(world)
    set_ranks(Ranks(worker_role(world.rank, endpoints), world))
    fleet = Collective()
    fleet.init(UserDefinedCollectiveRoleMaker(world.rank, endpoints))
    return fleet


@contextmanager
def own_programs() -> Iterator[None]:
    with (
        fluid.program_guard(fluid.Program(), fluid.Program()),
        fluid.scope_guard(fluid.Scope()),
        fluid.unique_name.guard(),
    ):
        yield


def digits(*, with_norm: bool = False) -> Any:
    """Return the loss of a small network for images of 16 pixels in 4 classes."""
    x, y = fluid.data("x", [None, 16]), fluid.data("y", [None, 1], "int64")
    hidden = fluid.layers.fc(x, 8, act="tanh")
    if with_norm:
        hidden = fluid.layers.batch_norm(hidden)
    scores = fluid.layers.fc(hidden, 4)
    return fluid.layers.mean(fluid.layers.softmax_with_cross_entropy(scores, y))


def clicks() -> Any:
    """Return the loss of a network on ids whose rows are in a table."""
    ids, y = fluid.data("ids", [None, 1], "int64"), fluid.data("y", [None, 1])
    row = fluid.layers.embedding(ids, [50, 4], is_sparse=True)
    score = fluid.layers.fc(fluid.layers.reshape(row, [-1, 4]), 1)
    return fluid.layers.mean(fluid.layers.sigmoid_cross_entropy_with_logits(score, y))


def digits_batch(step: int, parts: range) -> dict[str, Any]:
    """The examples of these ranks in a step."""
    x = [_wave(ROWS, 16, seed=100 * step + part) for part in parts]
    y = [np.arange(part, part + ROWS).reshape(-1, 1) % 4 for part in parts]
    return {"x": np.concatenate(x), "y": np.concatenate(y).astype(np.int64)}


def clicks_batch(step: int, parts: range) -> dict[str, Any]:
    """The examples of these ranks in a step."""
    ids = [(np.arange(ROWS) * 3 + part + step) % 50 for part in parts]
    y = [(np.arange(ROWS) + part) % 2 for part in parts]
    return {
        "ids": np.concatenate(ids).reshape(-1, 1).astype(np.int64),
        "y": np.concatenate(y).reshape(-1, 1).astype(np.float32),
    }


def parameters_of(program: Any) -> dict[str, list[float]]:
    """Return the values of what is trained, by name; each rank has its own running means."""
    found = {}
    for parameter in program.global_block().learned_parameters():
        value = fluid.global_scope().find_var(parameter.name).get_tensor()
        found[parameter.name] = np.array(value).reshape(-1).tolist()
    return found


def strategy_of(settings: Mapping[str, Any]) -> DistributedStrategy:
    strategy = DistributedStrategy()
    strategy.update(settings)
    return strategy


def _wave(*shape: int, seed: int) -> Any:
    count = int(np.prod(shape))
    return np.sin((np.arange(count) + 17 * seed) * 12.9898).astype(np.float32).reshape(shape)
