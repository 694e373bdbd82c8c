"""Runs of a part of a program."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparsefleet import fluid

L = fluid.layers


def value(name: str) -> Any:
    return np.array(fluid.global_scope().find_var(name).get_tensor())


@pytest.fixture
def two_losses() -> tuple[Any, Any]:
    x = fluid.data("x", [None, 1])
    updates = []
    for name in ("a", "b"):
        attr = fluid.ParamAttr(name=name, initializer=fluid.initializer.Constant(1.0))
        loss = L.mean(L.fc(x, 1, param_attr=attr, bias_attr=False))
        updates.append((loss, fluid.optimizer.SGD(1.0).minimize(loss)))
    return updates[0], updates[1]


FEED = {"x": np.ones((1, 1), "float32")}


def test_what_minimize_returned_runs_its_updates_only(two_losses: Any) -> None:
    (first, update), _ = two_losses
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    for _ in range(2):
        (loss,) = exe.run(feed=FEED, fetch_list=[first, update])
    assert loss == 0.0
    assert (value("a"), value("b")) == (-1.0, 1.0)


def test_a_pruned_run_trains_nothing_that_is_not_fetched(two_losses: Any) -> None:
    (first, _), (second, _) = two_losses
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    assert exe.run(feed=FEED, fetch_list=[first, second], use_prune=True) == [1.0, 1.0]
    assert (value("a"), value("b")) == (1.0, 1.0)
    exe.run(feed=FEED, fetch_list=[first])
    assert (value("a"), value("b")) == (0.0, 0.0)
