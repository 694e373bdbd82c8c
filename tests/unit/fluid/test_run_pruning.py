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


def test_a_pruned_run_trains_and_leaves_out_what_nobody_needs(two_losses: Any) -> None:
    (first, _), (second, _) = two_losses
    unused = L.mean(fluid.data("y", [None, 1]))
    unused.persistable = True
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    assert exe.run(feed=FEED, fetch_list=[first, second], use_prune=True) == [1.0, 1.0]
    assert (value("a"), value("b")) == (0.0, 0.0)
    assert fluid.global_scope().find_var(unused.name) is None


def test_a_pruned_run_begins_at_what_is_fed() -> None:
    hidden = L.fc(fluid.data("x", [None, 1]), 1, bias_attr=False)
    total = L.reduce_sum(hidden)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    feed = {hidden.name: np.full((2, 1), 3.0, "float32")}
    assert exe.run(feed=feed, fetch_list=[total], use_prune=True) == [6.0]


def test_a_pruned_compiled_program_trains(two_losses: Any) -> None:
    (first, _), _ = two_losses
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    main = fluid.CompiledProgram(fluid.default_main_program())
    compiled = main.with_data_parallel(first.name, places=fluid.cpu_places(1))
    exe.run(compiled, feed=FEED, fetch_list=[first], use_prune=True)
    assert (value("a"), value("b")) == (0.0, 0.0)
