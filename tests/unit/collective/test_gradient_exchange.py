"""The mean of gradients over ranks: exact, whatever the buckets, rings and nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.rank_processes import RankProcesses

from sparsefleet.collective import CollectiveStrategy, GradientExchange, World

SHAPES = {"a.weight": (7, 3), "a.bias": (7,), "b.weight": (3, 7), "b.bias": (3,), "c.weight": (5,)}


@pytest.fixture(scope="module")
def ranks() -> Iterator[RankProcesses]:
    with RankProcesses() as processes:
        yield processes


def parameters() -> list[tuple[str, torch.nn.Parameter]]:
    return [(name, torch.nn.Parameter(torch.zeros(shape))) for name, shape in SHAPES.items()]


def gradients_of(rank: int) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(rank)
    return {name: torch.randn(shape, generator=random) for name, shape in SHAPES.items()}


def exchange_once(world: World, fields: dict[str, Any]) -> dict[str, Any]:
    exchange = GradientExchange(parameters(), world, CollectiveStrategy(**fields))
    for name, gradient in reversed(gradients_of(world.rank).items()):
        exchange.ready(name, gradient)
    present = exchange.finish()
    found = {name: exchange.gradient(name).flatten().tolist() for name in SHAPES}
    calls = exchange.traffic.calls_of("all_reduce")
    exchange.close()
    return {
        "present": present,
        "found": found,
        "calls": calls,
        "across": exchange.traffic.sent_across_nodes_bytes,
    }


def mean_over(num_ranks: int) -> dict[str, list[float]]:
    by_rank = [gradients_of(rank) for rank in range(num_ranks)]
    return {
        name: (sum(one[name] for one in by_rank) / num_ranks).flatten().tolist() for name in SHAPES
    }


@pytest.mark.parametrize("size", [2, 4])
def test_all_buckets_and_rings_give_the_same_bits_on_all_ranks(
    ranks: RankProcesses, size: int
) -> None:
    for fields, calls in (
        ({"fuse_all_reduce": False}, 5),
        ({"fuse_memory_mb": -1, "fuse_groups": 1}, 3),
        ({"fuse_groups": 2}, 2),
        ({"fuse_groups": -1, "num_rings": 2}, 1),
        ({"fuse_all_reduce": False, "num_rings": 3}, 5),
    ):
        for result in ranks.run(exchange_once, size, fields):
            assert result["found"] == mean_over(size), fields
            assert result["present"] == size
            assert result["calls"] == calls, fields
