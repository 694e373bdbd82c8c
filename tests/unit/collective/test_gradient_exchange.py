"""The mean of gradients over ranks: exact, whatever the buckets, rings and nodes are."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from tests.support.rank_processes import RankProcesses

from sparsefleet.collective import CollectiveStrategy, World
from sparsefleet.collective.gradient_exchange import GradientExchange
from sparsefleet.collective.reduction import Traffic
from sparsefleet.errors import ConfigError, ShapeError, WorkerError

SHAPES = {"a.weight": (7, 3), "a.bias": (7,), "b.weight": (3, 7), "b.bias": (3,), "c.weight": (5,)}
BY_LAYER = {"fuse_memory_mb": -1, "fuse_groups": 1}
ALONE = World.join()


def parameters() -> list[tuple[str, torch.Tensor]]:
    return [(name, torch.nn.Parameter(torch.zeros(shape))) for name, shape in SHAPES.items()]


def gradients_of(rank: int) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(rank)
    return {name: torch.randn(shape, generator=random) for name, shape in SHAPES.items()}


def hand_in(exchange: GradientExchange, rank: int, *, without: tuple[str, ...] = ()) -> None:
    for name, gradient in reversed(gradients_of(rank).items()):
        if name not in without:
            exchange.ready(name, gradient)


def results(exchange: GradientExchange) -> dict[str, list[float] | None]:
    found = {name: exchange.gradient(name) for name in SHAPES}
    return {name: None if g is None else g.flatten().tolist() for name, g in found.items()}


def mean_over(present: int, num_ranks: int, without: dict[int, tuple[str, ...]]) -> dict[str, Any]:
    total = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    for rank in range(num_ranks):
        for name, gradient in gradients_of(rank).items():
            if name not in without.get(rank, ()):
                total[name] += gradient
    return {name: (value / present).flatten().tolist() for name, value in total.items()}


def exchange_once(world: World, settings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Run under each of several strategies."""
    found = []
    for fields in settings:
        traffic = Traffic()
        sizes: list[int] = []
        traffic.listen(lambda transfer, sizes=sizes: sizes.append(transfer.payload_bytes))
        exchange = GradientExchange(
            parameters(), world, CollectiveStrategy(**fields), traffic=traffic
        )
        hand_in(exchange, world.rank)
        present = exchange.finish()
        found.append(
            {
                "present": present,
                "mean": results(exchange),
                "calls": traffic.calls_of("all_reduce"),
                "sizes": sizes,
                "across": traffic.sent_across_nodes_bytes,
            }
        )
        exchange.close()
    return found


@pytest.mark.parametrize("size", [2, 4])
def test_any_buckets_and_rings_give_the_same_bits_on_all_ranks(
    ranks: RankProcesses, size: int
) -> None:
    settings = [
        {"fuse_all_reduce": False},
        BY_LAYER,
        {"fuse_memory_mb": 1e-4, "fuse_groups": 1},
        {"fuse_groups": 2, "fuse_memory_mb": -1},
        {"fuse_groups": -1, "num_rings": 2},
        {"fuse_all_reduce": False, "num_rings": 3},
    ]
    for by_setting in ranks.run(exchange_once, size, settings):
        assert [found["calls"] for found in by_setting] == [5, 3, 2, 2, 1, 5]
        for found in by_setting:
            assert found["present"] == size
            assert found["mean"] == mean_over(size, size, {})


def test_unfused_all_reduces_are_as_large_as_their_gradients(ranks: RankProcesses) -> None:
    unfused, fused = ranks.run(exchange_once, 2, [{"fuse_all_reduce": False}, BY_LAYER])[0]
    notes = 2 + len(SHAPES)  # after the last bucket: a number for each rank and parameter
    assert unfused["sizes"] == [4 * n for n in (6, 4, 22, 8, 21 + notes)]  # even numbers of floats
    assert fused["sizes"] == [4 * n for n in (6, 24, 28 + notes + 1)]


def test_hierarchical_equals_flat_with_less_between_nodes(ranks: RankProcesses) -> None:
    settings = [BY_LAYER, {"hierarchical": True, **BY_LAYER}]
    by_rank = ranks.run(exchange_once, 4, settings, ranks_per_node=2)
    for flat, hierarchical in by_rank:
        assert hierarchical["mean"] == by_rank[0][1]["mean"]
        for name, values in hierarchical["mean"].items():
            assert values == pytest.approx(flat["mean"][name], abs=1e-6)
    flat_bytes = sum(flat["across"] for flat, _ in by_rank)
    assert 0 < sum(hierarchical["across"] for _, hierarchical in by_rank) <= flat_bytes / 2


def hierarchical_on_one_node(world: World) -> list[Any]:
    exchange = GradientExchange(parameters(), world, CollectiveStrategy(hierarchical=True))
    hand_in(exchange, world.rank)
    exchange.finish()
    try:
        GradientExchange(
            parameters(), world, CollectiveStrategy(hierarchical=True, ranks_per_node=2)
        )
    except ConfigError as error:
        return [results(exchange), str(error)]
    return []


def test_hierarchical_needs_nodes_of_equal_size(ranks: RankProcesses) -> None:
    for mean, error in ranks.run(hierarchical_on_one_node, 3):
        assert mean == mean_over(3, 3, {})
        assert "3 ranks cannot be divided into nodes of 2" in error


def exchange_unevenly(world: World) -> list[Any]:
    """Unused parameters, then a rank without data, then none with any."""
    exchange = GradientExchange(parameters(), world, CollectiveStrategy(**BY_LAYER))
    unused: dict[int, tuple[str, ...]] = {0: ("a.bias", "c.weight"), 1: ("c.weight",)}
    hand_in(exchange, world.rank, without=unused[world.rank])
    found: list[Any] = [exchange.finish(), results(exchange)]
    if world.rank:
        hand_in(exchange, world.rank)
        exchange.finish()
    else:
        found.append(exchange.shadow())
    found.append(results(exchange))
    found.append(exchange.shadow())
    return found


def test_unused_parameters_and_ranks_without_data_are_left_out_of_the_mean(
    ranks: RankProcesses,
) -> None:
    first, second = ranks.run(exchange_unevenly, 2)
    expected = mean_over(2, 2, {0: ("a.bias",)})
    assert first[:2] == second[:2] == [2, {**expected, "c.weight": None}]
    only_second = {name: g.flatten().tolist() for name, g in gradients_of(1).items()}
    assert first[2:] == [True, only_second, False]
    assert second[2:] == [only_second, False]


def give_up_on_rank_1(world: World, at: int) -> list[Any]:
    exchange = GradientExchange(parameters(), world, CollectiveStrategy(**BY_LAYER))
    found: list[Any] = []
    for step in range(3):
        if step == at and world.rank == 1:
            exchange.ready("c.weight", torch.ones(5))
            exchange.abandon()
            continue
        hand_in(exchange, world.rank)
        try:
            found.append(exchange.finish())
        except WorkerError as error:
            found.append(str(error))
    return [*found, results(exchange)]


@pytest.mark.parametrize("at", [0, 1])
def test_ranks_learn_that_another_gave_up_and_the_next_step_is_whole(
    ranks: RankProcesses, at: int
) -> None:
    first, second = ranks.run(give_up_on_rank_1, 2, at)
    assert f"worker 1: RuntimeError('gave up in step {at}" in first[at]
    assert [first[step] for step in range(3) if step != at] == [2, 2]
    assert second[:2] == [2, 2]
    assert first[-1] == second[-1] == mean_over(2, 2, {})


class Backwards(torch.nn.Module):
    """Uses its layers in a different order than it declares them."""

    def __init__(self) -> None:
        super().__init__()
        self.last = torch.nn.Linear(4, 1)
        self.first = torch.nn.Linear(3, 4)
        self.rows = torch.nn.Embedding(6, 3, sparse=True)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(self.rows(ids))).square().mean()


def train_backwards(world: World) -> list[Any]:
    torch.manual_seed(0)
    model = Backwards()
    exchange = GradientExchange(
        model.named_parameters(),
        world,
        CollectiveStrategy(**BY_LAYER),
        sparse_names=["rows.weight"],
    )
    exchange.attach()
    for step in range(3):
        model.zero_grad()
        model(torch.tensor([world.rank, 2, 2 + step])).backward()
        exchange.finish()
    found = [parameter.grad for parameter in model.parameters()]
    assert found[-1].is_sparse
    return [gradient.to_dense().tolist() for gradient in found]


def test_hooks_exchange_dense_and_sparse_gradients_in_the_order_of_use(
    ranks: RankProcesses,
) -> None:
    torch.manual_seed(0)
    model = Backwards()
    for rank in range(2):
        (model(torch.tensor([rank, 2, 4])) / 2).backward()
    first, second = ranks.run(train_backwards, 2)
    assert first == second
    for found, parameter in zip(first, model.parameters(), strict=True):
        assert torch.allclose(torch.tensor(found), parameter.grad.to_dense(), atol=1e-6)


def watch_order(world: World) -> list[list[str]]:
    """What happens in two steps of a model whose last layer is declared first."""
    last, first = torch.nn.Linear(4, 1), torch.nn.Linear(3, 4)
    named = [*last.named_parameters("last"), *first.named_parameters("first")]
    steps: list[list[str]] = []
    traffic = Traffic()
    traffic.listen(lambda _: steps[-1].append("sent"))
    exchange = GradientExchange(named, world, CollectiveStrategy(**BY_LAYER), traffic=traffic)
    exchange.attach()
    for name, parameter in named:
        layer = name.partition(".")[0]
        parameter.register_post_accumulate_grad_hook(lambda _, layer=layer: steps[-1].append(layer))
    for _ in range(2):
        steps.append([])
        for _, parameter in named:
            parameter.grad = None
        last(first(torch.ones(2, 3))).sum().backward()
        steps[-1].append("finish")
        exchange.finish()
    return steps


def test_buckets_set_out_during_backward_in_the_order_in_which_they_fill(
    ranks: RankProcesses,
) -> None:
    for once, then in ranks.run(watch_order, 2):
        assert once == ["last", "last", "first", "sent", "first", "finish", "sent"]
        assert then == ["last", "sent", "last", "first", "first", "finish", "sent"]


def disagree(world: World, on: str) -> str:
    if on == "environment" and world.rank == 1:
        os.environ |= {"FLAGS_fuse_parameter_groups_size": "-1"}
    strategy = CollectiveStrategy(num_rings=1 + (on == "CollectiveStrategy") * world.rank)
    width = 1 + (on == "parameters") * world.rank
    named = [(f"layer_{i}.weight", torch.zeros(width)) for i in range(2)]
    with pytest.raises(ConfigError) as found:
        GradientExchange(named, world, strategy)
    return str(found.value)


@pytest.mark.parametrize("on", ["parameters", "CollectiveStrategy", "environment"])
def test_ranks_with_different_settings_are_named(ranks: RankProcesses, on: str) -> None:
    for told in ranks.run(disagree, 3, on):
        assert told.startswith("rank 1 and rank 0 differ in the ")
        assert on in told


def test_a_rank_alone_keeps_its_gradients() -> None:
    exchange = GradientExchange(parameters(), ALONE, CollectiveStrategy())
    hand_in(exchange, 0, without=("a.bias",))
    assert exchange.finish(divisor=2.0) == 1
    found = results(exchange)
    assert found.pop("a.bias") is None
    assert all(found[name] == (gradients_of(0)[name] / 2).flatten().tolist() for name in found)
    assert not exchange.shadow()


def test_a_second_gradient_in_one_step_is_refused() -> None:
    exchange = GradientExchange(parameters(), ALONE, CollectiveStrategy())
    exchange.ready("a.bias", torch.ones(7))
    with pytest.raises(ConfigError, match="'a.bias' got a second gradient.*gradient_merge_steps"):
        exchange.ready("a.bias", torch.ones(7))


def test_gradients_of_unknown_parameters_or_other_shapes_are_refused() -> None:
    exchange = GradientExchange(parameters(), ALONE, CollectiveStrategy())
    with pytest.raises(ConfigError, match="'d' is not one of the 5 exchanged parameters"):
        exchange.ready("d", torch.ones(1))
    with pytest.raises(ShapeError, match=r"must have shape \(7,\), got \(1,\)"):
        exchange.ready("a.bias", torch.ones(1))


def test_hooks_are_for_parameters_with_gradients() -> None:
    exchange = GradientExchange([("frozen", torch.zeros(1))], ALONE, CollectiveStrategy())
    with pytest.raises(ConfigError, match="'frozen' gets no gradient"):
        exchange.attach()


def test_parameters_need_names_of_their_own() -> None:
    with pytest.raises(ConfigError, match="unique names"):
        GradientExchange(
            [("a", torch.zeros(1)), ("a", torch.zeros(1))], ALONE, CollectiveStrategy()
        )
