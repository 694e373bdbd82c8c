"""Activations between checkpoints are recomputed: less is kept, results are the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from sparsefleet import fluid
from sparsefleet.fluid.lowering.lowered import OpTimes
from sparsefleet.fluid.optimizer import RecomputeOptimizer

L = fluid.layers
LAYERS, WIDTH, BATCH = 6, 32, 64


@contextmanager
def kept_bytes() -> Iterator[list[int]]:
    """Record what autograd keeps for the backward pass, except what is recomputed."""
    kept: list[int] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.nbytes)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield kept


def build(checkpoints: str, *, dropout: bool = True, mixed: bool = False, seed: int = 5) -> Any:
    """A deep network; checkpoints: none, some, or names."""
    fluid.default_main_program().random_seed = seed
    fluid.default_startup_program().random_seed = 5
    hidden = fluid.data("x", [None, WIDTH])
    marked: list[Any] = []
    for layer in range(LAYERS):
        hidden = L.batch_norm(L.fc(hidden, WIDTH), act="tanh")
        hidden = L.dropout(hidden, 0.2) if dropout else L.scale(hidden, 0.9)
        if layer % 2:
            marked.append(hidden)
    loss = L.mean(L.square(L.fc(hidden, 1, param_attr=fluid.ParamAttr("last"))))
    optimizer: Any = fluid.optimizer.Momentum(0.1, 0.9)
    if checkpoints != "none":
        optimizer = RecomputeOptimizer(optimizer)
        optimizer._set_checkpoints([v.name for v in marked] if checkpoints == "names" else marked)
    if mixed:
        optimizer = fluid.contrib.mixed_precision.decorate(optimizer)
    optimizer.minimize(loss)
    return loss


def train(checkpoints: str, **settings: Any) -> dict[str, Any]:
    """Losses, parameters and statistics after three steps, and what the last step did."""
    main, startup = fluid.Program(), fluid.Program()
    with (
        fluid.program_guard(main, startup),
        fluid.scope_guard(fluid.Scope()),
        fluid.unique_name.guard(),
    ):
        loss = build(checkpoints, **settings)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        draw = np.random.default_rng(0)
        losses = []
        for _ in range(3):
            feed = {"x": draw.normal(size=(BATCH, WIDTH)).astype("float32")}
            with OpTimes() as calls, kept_bytes() as kept:
                losses.append(exe.run(main, feed, [loss])[0])
        held = {
            variable.name: np.array(fluid.global_scope().find_var(variable.name).get_tensor())
            for variable in main.list_vars()
            if variable.persistable
        }
    return {"losses": losses, "held": held, "tanh": calls.calls("tanh"), "bytes": sum(kept)}


@pytest.mark.parametrize("checkpoints", ["variables", "names"])
def test_results_are_the_same_and_less_is_kept(checkpoints: str) -> None:
    plain, again = train("none"), train(checkpoints)
    np.testing.assert_array_equal(plain["losses"], again["losses"])
    assert plain["held"].keys() == again["held"].keys()
    for name, value in plain["held"].items():
        np.testing.assert_array_equal(again["held"][name], value, err_msg=name)
    assert plain["tanh"] == LAYERS
    assert again["tanh"] == 2 * LAYERS  # all are before the last checkpoint
    assert again["bytes"] < plain["bytes"] / 3


def test_with_half_precision_outside_results_are_the_same() -> None:
    plain, again = train("none", mixed=True), train("variables", mixed=True)
    np.testing.assert_array_equal(plain["losses"], again["losses"])
    assert again["tanh"] == 2 * plain["tanh"]


def test_dropout_without_a_seed_leaves_out_the_same_both_times() -> None:
    x = fluid.data("x", [None, WIDTH])
    x.stop_gradient = False
    kept = L.dropout(L.scale(x, 1.0), 0.5)
    loss = L.reduce_sum(L.square(kept))
    pairs = fluid.backward.append_backward(loss, checkpoints=[loss])
    assert pairs == []
    exe = fluid.Executor(fluid.CPUPlace())
    feed = {"x": np.ones((BATCH, WIDTH), "float32")}
    masks = []
    for _ in range(2):
        value, slope = exe.run(feed=feed, fetch_list=[kept, "x@GRAD"])
        np.testing.assert_array_equal(slope, 2 * value)
        masks.append(value)
    assert not np.array_equal(*masks)


def test_operators_with_effects_and_rows_of_tables_are_run_once() -> None:
    ids, label = fluid.data("ids", [None, 1], "int64"), fluid.data("y", [None, 1], "int64")
    rows = L.embedding(ids, [9, 4], is_sparse=True, param_attr=fluid.ParamAttr("rows"))
    hidden = L.fc(L.scale(rows, 2.0), 4, act="tanh")
    chance = L.fc(hidden, 2, act="softmax")
    L.auc(chance, label)
    loss = L.mean(L.cross_entropy(L.scale(chance, 1.0), label))
    optimizer = RecomputeOptimizer(fluid.optimizer.SGD(0.5))
    optimizer._set_checkpoints([hidden, loss])
    optimizer.minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    table = fluid.global_scope().find_var("rows").get_tensor()
    before = np.array(table)
    feed = {"ids": np.arange(6).reshape(6, 1), "y": np.array([[0, 1, 0, 1, 0, 1]]).T}
    with OpTimes() as calls:
        exe.run(feed=feed)
    assert calls.calls("auc") == 2  # the AUC of all batches, and of the last ones
    assert calls.calls("tanh") == 2
    assert (np.array(table) != before).any(1).tolist() == [True] * 6 + [False] * 3


def test_replicas_recompute_each_for_itself() -> None:
    loss = build("variables", dropout=False)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    compiled = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(
        loss_name=loss.name, places=fluid.cpu_places(2)
    )
    feed = {"x": np.random.default_rng(1).normal(size=(BATCH, WIDTH)).astype("float32")}
    losses = [exe.run(compiled, feed, [loss])[0].mean() for _ in range(4)]
    assert losses[-1] < losses[0]


def test_a_checkpoint_that_is_not_a_variable_is_refused() -> None:
    loss = L.mean(L.fc(fluid.data("x", [None, 2]), 1))
    optimizer = RecomputeOptimizer(fluid.optimizer.SGD(0.1))
    with pytest.raises(AssertionError, match="call _set_checkpoints"):
        optimizer.minimize(loss)
    with pytest.raises(TypeError, match="a Variable or its name, got 3"):
        optimizer._set_checkpoints([3])  # type: ignore[list-item]
    optimizer._set_checkpoints(["nowhere"])
    with pytest.raises(fluid.framework.ProgramError, match="variable 'nowhere'"):
        optimizer.minimize(loss)
