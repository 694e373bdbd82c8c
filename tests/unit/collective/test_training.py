"""One step of several ranks: overflows, merged batches, uneven data, errors, state."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.support.rank_processes import RankProcesses
from torch import nn

from sparsefleet.collective import AmpConfig, CollectiveStrategy, LocalSgdConfig, World
from sparsefleet.collective.module_preparation import prepare_module
from sparsefleet.collective.training import CollectiveTraining
from sparsefleet.errors import ConfigError, WorkerError


class Run:
    """A line through points, trained by a rank; x of step s on rank r is 1 + s + 10 r."""

    def __init__(self, world: World, strategy: CollectiveStrategy, *, norm: bool = False) -> None:
        torch.manual_seed(0)
        self.model: nn.Module = nn.Linear(1, 1)
        if norm:
            self.model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
        self.world = world
        self.model, norm_group = prepare_module(self.model, world, strategy)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        self.training = CollectiveTraining(
            self.model.named_parameters(),
            self.optimizer.step,
            world,
            strategy,
            norm_group=norm_group,
        )

    def step(self, x: torch.Tensor, factor: float = 1.0) -> bool:
        with self.training.forward():
            loss = self.model(x).mean() * factor
        self.training.backward(loss)
        return self.training.step()

    def x(self, step: int) -> torch.Tensor:
        return torch.full((1, 1), 1.0 + step + 10 * self.world.rank)

    def values(self) -> list[float]:
        return [v for p in self.model.parameters() for v in p.detach().flatten().tolist()]


def overflow_on_rank_1(world: World, local: bool) -> dict[str, Any]:
    amp = AmpConfig(
        init_loss_scaling=4.0, decr_every_n_nan_or_inf=1, decr_ratio=0.5, float32_modules=("",)
    )
    run = Run(
        world,
        CollectiveStrategy(amp=amp, local_sgd=LocalSgdConfig(steps=4) if local else None),
    )
    updated, scales, values = [], [], [run.values()]
    for step in range(4):
        is_bad = world.rank == 1 and step in (1, 2)
        updated.append(run.step(run.x(step), float("inf") if is_bad else 1.0))
        assert run.training.scaler is not None
        scales.append(run.training.scaler.scale)
        values.append(run.values())
    run.training.leave()
    return {
        "updated": updated,
        "scales": scales,
        "values": values,
        "skipped": run.training.num_skipped,
        "last": run.values(),
    }


def test_an_overflow_on_one_rank_skips_the_step_on_all_and_lowers_the_scale(
    ranks: RankProcesses,
) -> None:
    first, second = ranks.run(overflow_on_rank_1, 2, False)
    assert first == second
    assert first["updated"] == [True, False, False, True]
    assert first["scales"] == [4.0, 4.0, 2.0, 2.0]
    values = first["values"]
    assert values[1] == values[2] == values[3]
    # The gradient of the weight is the mean of x, whatever the scale: 1 and 11, then 4 and 14.
    assert values[0][0] - values[1][0] == pytest.approx(6e-4, rel=1e-3)
    assert values[3][0] - values[4][0] == pytest.approx(9e-4, rel=1e-3)
    assert first["skipped"] == 2


def test_with_local_sgd_an_overflow_is_a_matter_of_its_rank(ranks: RankProcesses) -> None:
    first, second = ranks.run(overflow_on_rank_1, 2, True)
    assert first["updated"] == [True] * 4
    assert second["updated"] == [True, False, False, True]
    assert first["last"] == second["last"]


def train_unevenly(world: World, counts: list[int], fields: dict[str, Any]) -> list[float]:
    run = Run(world, CollectiveStrategy(**fields))
    for step in range(counts[world.rank]):
        run.step(run.x(step))
    run.training.leave()
    return run.values()


def decline_of(world_size: int, counts: list[int], merged: int = 1) -> float:
    """Return the decrease of the weight: lr times the sum over steps of the mean of x over the
    ranks that have data, where a rank contributes the mean of its merged batches.
    """
    total = 0.0
    for first in range(0, max(counts), merged):
        means = []
        for rank in range(world_size):
            xs = [1.0 + s + 10 * rank for s in range(first, min(first + merged, counts[rank]))]
            if xs:
                means.append(sum(xs) / len(xs))
        total += sum(means) / len(means)
    return 1e-4 * total


@pytest.mark.parametrize(
    ("counts", "merged"),
    [([2, 5, 0], 1), ([0, 0, 0], 1), ([5, 2, 4], 2)],
)
def test_ranks_with_uneven_data_end_equal(
    ranks: RankProcesses, counts: list[int], merged: int
) -> None:
    torch.manual_seed(0)
    start = nn.Linear(1, 1).weight.item()
    found = ranks.run(train_unevenly, 3, counts, {"gradient_merge_steps": merged})
    assert found[0] == found[1] == found[2]
    assert start - found[0][0] == pytest.approx(decline_of(3, counts, merged), rel=1e-3)


def warm_up_unevenly(world: World) -> dict[str, Any]:
    run = Run(world, CollectiveStrategy(local_sgd=LocalSgdConfig(warm_steps=3, steps=2)))
    for step in range([2, 6][world.rank]):
        run.step(run.x(step))
    run.training.leave()
    assert run.training.local_sgd is not None
    return {"values": run.values(), "meetings": run.training.local_sgd.num_meetings}


def test_a_rank_may_run_out_of_data_while_local_sgd_warms_up(ranks: RankProcesses) -> None:
    first, second = ranks.run(warm_up_unevenly, 2)
    assert first["values"] == second["values"]
    assert second["meetings"] == 2


def normalize_unevenly(world: World, merged: int) -> list[float]:
    strategy = CollectiveStrategy(sync_batch_norm=True, gradient_merge_steps=merged)
    run = Run(world, strategy, norm=True)
    random = torch.Generator().manual_seed(world.rank)
    for _ in range([3, 1, 2][world.rank]):
        run.step(torch.randn(4, 2, generator=random))
    run.training.leave()
    buffers = [v for b in run.model.buffers() for v in b.flatten().tolist()]
    return [*run.values(), *(buffers if world.rank == 0 else [])]


@pytest.mark.parametrize("merged", [1, 2])
def test_batch_norms_of_all_ranks_continue_without_those_that_have_no_data(
    ranks: RankProcesses, merged: int
) -> None:
    first, second, third = ranks.run(normalize_unevenly, 3, merged)
    assert first[: len(second)] == second == third
    assert first[-1] == 3  # batches that rank 0's batch norm has tracked


class Failing(torch.autograd.Function):
    """Raises in the backward pass, after the gradients of later layers are done."""

    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(*_: Any) -> torch.Tensor:
        raise ZeroDivisionError


def fail_in(world: World, where: str) -> dict[str, Any]:
    run = Run(world, CollectiveStrategy())
    found: list[Any] = []
    for step in range(3):
        try:
            is_bad = step == 1 and world.rank == 1
            with run.training.forward():
                if is_bad and where == "forward":
                    raise ZeroDivisionError
                x = run.x(step).requires_grad_()
                x = Failing.apply(x) if is_bad and where == "the end of backward" else x
                loss = run.model(x).mean()
            if is_bad and where == "backward":
                x.register_hook(lambda _: 1 // 0)
            run.training.backward(loss)
            found.append(run.training.step())
        except ZeroDivisionError:
            found.append("own error")
        except WorkerError as error:
            found.append(sorted(error.failures))
    run.training.leave()
    return {"found": found, "values": run.values()}


@pytest.mark.parametrize("where", ["forward", "backward", "the end of backward"])
def test_an_error_on_one_rank_is_reported_to_all_and_leaves_nothing_under_way(
    ranks: RankProcesses, where: str
) -> None:
    first, second = ranks.run(fail_in, 2, where)
    assert first["found"] == [True, [1], True]
    assert second["found"] == [True, "own error", True]
    assert first["values"] == second["values"]


def alone(strategy: CollectiveStrategy | None = None) -> Run:
    return Run(World.join(), strategy or CollectiveStrategy())


def test_a_step_needs_a_backward_pass() -> None:
    with pytest.raises(ConfigError, match="instead of loss.backward"):
        alone().training.step()


def test_merged_batches_can_be_summed() -> None:
    mean, total = (
        alone(CollectiveStrategy(gradient_merge_steps=2, gradient_merge_average=average))
        for average in (True, False)
    )
    for run in (mean, total):
        before = run.values()[0]
        assert [run.step(run.x(step)) for step in range(2)] == [False, True]
        fall = 1.5e-4 if run is mean else 3e-4
        assert before - run.values()[0] == pytest.approx(fall, rel=1e-3)


def test_gradients_of_earlier_merged_batches_count_though_the_last_uses_no_parameter() -> None:
    run = alone(CollectiveStrategy(gradient_merge_steps=2))
    before = run.values()[0]
    run.step(run.x(0))
    run.training.backward(torch.ones((), requires_grad=True))
    assert run.training.step()
    assert before - run.values()[0] == pytest.approx(0.5e-4, rel=1e-3)


def test_state_is_taken_between_steps_only() -> None:
    run = alone(CollectiveStrategy(gradient_merge_steps=2))
    run.step(run.x(0))
    with pytest.raises(ConfigError, match="1 batches are merged but not yet applied"):
        run.training.state_dict()


def test_training_resumes_where_its_state_was_taken() -> None:
    strategy = CollectiveStrategy(
        amp=AmpConfig(init_loss_scaling=4.0, incr_every_n_steps=2, float32_modules=("",)),
        local_sgd=LocalSgdConfig(warm_steps=1, steps=2),
    )
    first, second = alone(strategy), alone(strategy)
    for step in range(2):
        first.step(first.x(step))
    first.training.settle()
    second.model.load_state_dict(first.model.state_dict())
    second.training.load_state_dict(first.training.state_dict())
    for step in range(2, 6):
        assert first.step(first.x(step)) == second.step(second.x(step))
    assert first.values() == second.values()
    assert first.training.state_dict() == second.training.state_dict()


def test_mixed_precision_computes_in_16_bits_and_updates_in_32() -> None:
    run = alone(CollectiveStrategy(amp=AmpConfig()))
    with run.training.forward():
        out = run.model(torch.ones(1, 1))
    assert out.dtype == torch.bfloat16
    run.training.backward(out.sum())
    weight = next(run.model.parameters())
    assert weight.dtype == weight.grad.dtype == torch.float32  # type: ignore[union-attr]
    assert run.training.step()
