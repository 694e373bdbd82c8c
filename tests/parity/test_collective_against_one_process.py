"""Ranks that train together against one process on their joined batches: MNIST-shaped digits."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.support.rank_processes import RankProcesses
from torch import nn

from sparsefleet.collective import AmpConfig, CollectiveStrategy, LocalSgdConfig, World
from sparsefleet.collective.module_preparation import prepare_module
from sparsefleet.collective.training import CollectiveTraining

BATCH = 8
STEPS = 6
JOINED = 4
"""The parts of a joined batch; with 2 ranks, each takes two in turn."""


def model_of(kind: str) -> nn.Module:
    torch.manual_seed(1)
    norm = [nn.BatchNorm2d(2)] if kind == "norm" else []
    return nn.Sequential(
        nn.Conv2d(1, 2, 5, stride=3), *norm, nn.ReLU(), nn.Flatten(), nn.Linear(128, 10)
    )


def part_of(step: int, part: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images [BATCH, 1, 28, 28] that depend on their digits [BATCH]."""
    random = torch.Generator().manual_seed(1000 * step + part)
    digits = torch.randint(10, (BATCH,), generator=random)
    noise = torch.rand(BATCH, 1, 28, 28, generator=random)
    return noise + digits.view(-1, 1, 1, 1) / 10, digits


def joined_batch(step: int, parts: range) -> tuple[torch.Tensor, torch.Tensor]:
    images, digits = zip(*[part_of(step, part) for part in parts], strict=True)
    return torch.cat(images), torch.cat(digits)


def optimizer_of(kind: str, model: nn.Module) -> torch.optim.Optimizer:
    if kind == "adam":
        return torch.optim.Adam(model.parameters(), lr=0.01)
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9 if kind == "momentum" else 0)


def strategy_of(name: str) -> CollectiveStrategy:
    strategies: dict[str, Callable[[], CollectiveStrategy]] = {
        "fused": CollectiveStrategy,
        "unfused": lambda: CollectiveStrategy(fuse_all_reduce=False, num_rings=2),
        "one bucket": lambda: CollectiveStrategy(fuse_groups=-1),
        "hierarchical": lambda: CollectiveStrategy(hierarchical=True),
        "merged": lambda: CollectiveStrategy(gradient_merge_steps=2),
        "local": lambda: CollectiveStrategy(local_sgd=LocalSgdConfig(steps=1)),
        "norm": lambda: CollectiveStrategy(sync_batch_norm=True),
        "recomputed": lambda: CollectiveStrategy(recompute=("1", "3")),
        "scaled": lambda: CollectiveStrategy(
            amp=AmpConfig(init_loss_scaling=2.0**10, float32_modules=("",))
        ),
    }
    return strategies[name]()


def train_alone(optimizer_kind: str, model_kind: str) -> tuple[list[float], list[float]]:
    """Losses and parameters of plain torch on joined batches."""
    model = model_of(model_kind)
    optimizer = optimizer_of(optimizer_kind, model)
    losses = []
    for step in range(STEPS):
        images, digits = joined_batch(step, range(JOINED))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), digits)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, flat(model).tolist()


def flat(model: nn.Module) -> torch.Tensor:
    """Parameters and running statistics."""
    return torch.cat([value.detach().flatten().float() for value in model.state_dict().values()])


def train_together(world: World, runs: list[list[str]]) -> list[dict[str, Any]]:
    return [train_one(world, *run) for run in runs]


def train_one(world: World, name: str, optimizer_kind: str, model_kind: str) -> dict[str, Any]:
    strategy = strategy_of(name)
    torch.manual_seed(world.rank)
    model = model_of(model_kind)
    if world.rank:
        for parameter in model.parameters():
            nn.init.constant_(parameter, world.rank)  # rank 0's values are used, not these
    model, norm_group = prepare_module(model, world, strategy)
    optimizer = optimizer_of(optimizer_kind, model)
    training = CollectiveTraining(
        model.named_parameters(), optimizer.step, world, strategy, norm_group=norm_group
    )
    own = JOINED // world.size
    merged = strategy.gradient_merge_steps
    losses = []
    for step in range(STEPS):
        first = world.rank * own
        parts = [range(first + i * own // merged, first + (i + 1) * own // merged)
                 for i in range(merged)]  # fmt: skip
        found = []
        for part in parts:
            images, digits = joined_batch(step, part)
            with training.forward():
                loss = nn.functional.cross_entropy(model(images), digits)
            training.backward(loss)
            is_updated = training.step()
            found.append(loss.item())
        assert is_updated
        losses.append(sum(found) / merged)
    training.leave()
    training.close()
    values = flat(model)
    digest = hashlib.sha256(values.numpy().tobytes()).hexdigest()
    return {"losses": losses, "digest": digest, "values": values.tolist()}


RUNS: dict[int, list[list[str]]] = {
    1: [
        ["fused", "sgd", "plain"],
        ["merged", "adam", "plain"],
        ["recomputed", "sgd", "plain"],
        ["norm", "sgd", "norm"],
    ],
    2: [
        ["fused", "sgd", "plain"],
        ["fused", "momentum", "plain"],
        ["one bucket", "adam", "plain"],
        ["unfused", "sgd", "plain"],
        ["merged", "adam", "plain"],
        ["local", "sgd", "plain"],
        ["norm", "momentum", "norm"],
        ["recomputed", "adam", "plain"],
        ["scaled", "adam", "plain"],
    ],
    4: [
        ["fused", "adam", "plain"],
        ["hierarchical", "momentum", "plain"],
        ["local", "sgd", "plain"],
        ["norm", "sgd", "norm"],
    ],
}


@pytest.mark.parametrize("size", RUNS)
def test_ranks_follow_one_process_on_the_joined_batch(ranks: RankProcesses, size: int) -> None:
    by_rank = ranks.run(train_together, size, RUNS[size], ranks_per_node=max(1, size // 2))
    for (name, optimizer, model), *found in zip(RUNS[size], *by_rank, strict=True):
        losses, values = train_alone(optimizer, model)
        assert len({rank["digest"] for rank in found}) == 1, name
        curve = [sum(at) / size for at in zip(*(rank["losses"] for rank in found), strict=True)]
        assert curve == pytest.approx(losses, abs=1e-5), name
        assert found[0]["values"] == pytest.approx(values, abs=1e-5), name
