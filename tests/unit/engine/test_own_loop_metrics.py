"""Steps that a script takes itself are counted like those of a training."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from sparsefleet import fluid
from sparsefleet.engine.clock import StepClock
from sparsefleet.engine.worker_metrics import WORKER
from sparsefleet.fleet.fleet import Fleet
from sparsefleet.monitor.reading import Reading
from sparsefleet.nn import SparseEmbedding, SparseEmbeddingBag

ACTIVITY = "sparsefleet_worker_activity_seconds_total"


def counted() -> dict[str, float]:
    reading = Reading(WORKER.samples())
    names = ("steps", "examples", "skipped_steps", "loss")
    found = {name: reading.get(f"sparsefleet_worker_{name}_total") for name in names}
    return found | reading.by(ACTIVITY, "activity")


def local_fleet(model: nn.Module) -> Fleet:
    fleet = Fleet()
    fleet.init()
    fleet.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), "local")
    fleet.init_worker()
    return fleet


def test_a_loop_over_fleet_step_counts_its_steps_examples_and_loss() -> None:
    model = nn.Sequential(SparseEmbedding("own_ads", 4), nn.Linear(4, 1))
    fleet = local_fleet(model)
    before = counted()
    ids = torch.arange(8)
    losses = 0.0
    for _ in range(5):
        with fleet.step(ids) as step:
            loss = model(ids).pow(2).mean() + 1.0
            step.backward(loss)
            losses += 8 * loss.item()
    with fleet.step(ids) as step:
        step.skip()
    after = counted()
    reading = Reading(WORKER.samples())
    assert reading.get("sparsefleet_table_rows", table="own_ads") == 8
    fleet.stop_worker()
    grown = {name: after[name] - before[name] for name in before}
    assert (grown["steps"], grown["examples"], grown["skipped_steps"]) == (5, 40, 1)
    assert grown["loss"] == pytest.approx(losses)
    assert grown["compute"] > 0
    assert grown["push"] > 0
    assert grown["other"] > 0
    assert "sparsefleet_table_rows" not in Reading(WORKER.samples())


def test_without_a_batch_the_lookups_say_how_many_examples_there_are() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.user = SparseEmbedding("own_user", 2)
            self.items = SparseEmbeddingBag("own_items", 2)
            self.top = nn.Linear(2, 1)

        def forward(self, user: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
            return self.top(self.user(user) + self.items(items)).sum()

    model = Model()
    fleet = local_fleet(model)
    before = counted()
    with fleet.step():
        model(torch.arange(6), torch.ones(6, 3, dtype=torch.int64)).backward()
    assert counted()["examples"] - before["examples"] == 6
    fleet.stop_worker()


def test_runs_of_an_executor_count_if_they_train() -> None:
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup):
        x = fluid.data("x", [None, 3])
        loss = fluid.layers.mean(fluid.layers.fc(x, 1))
        test = main.clone(for_test=True)
        fluid.optimizer.SGD(0.1).minimize(loss)
    executor = fluid.Executor(fluid.CPUPlace())
    with fluid.scope_guard(fluid.Scope()):
        executor.run(startup)
        before = counted()
        feed = {"x": torch.ones(7, 3).numpy()}
        for _ in range(3):
            executor.run(main, feed=feed, fetch_list=[loss])
        executor.run(test, feed=feed, fetch_list=[loss])
    after = counted()
    assert after["steps"] - before["steps"] == 3
    assert after["examples"] - before["examples"] == 21
    assert after["compute"] > before["compute"]


def test_a_loss_that_is_no_number_does_not_spoil_the_sum_of_losses() -> None:
    clock = StepClock()
    for loss in (2.0, math.nan, 1.0):
        clock.count(10, 0.0, 0.1, 0.2, loss=loss)
    assert (clock.steps, clock.loss_sum) == (3, 30.0)
