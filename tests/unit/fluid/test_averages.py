"""Averages of parameters, with the numbers of PaddlePaddle 1.8.5: four steps from W by G."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sparsefleet import fluid
from sparsefleet.errors import ConfigError

L = fluid.layers
optimizer = fluid.optimizer

W = np.array([0.3, -0.2, 0.1], np.float32)
G = np.array([[0.5, -1.0, 2.0], [0.1, 0.3, -0.7], [-1.5, 0.0, 0.4], [0.2, 0.2, 0.2]], np.float32)
TRAINED = [0.37, -0.15, -0.09]


def moving(decay: float, thres_steps: Any = None) -> Any:
    average = optimizer.ExponentialMovingAverage(decay, thres_steps)
    average.update()
    return average


KINDS: dict[str, tuple[Callable[[], Any], list[float]]] = {
    "moving": (lambda: moving(0.9), [0.319177, -0.1294562, -0.0727537]),
    "moving, first steps": (
        lambda: moving(0.3, L.learning_rate_scheduler._decay_step_counter(1)),
        [0.364656, -0.144083, -0.082232],
    ),
    "moving, whole steps": (
        lambda: moving(0.3, L.autoincreased_step_counter()),
        [0.3636909, -0.1435427, -0.0821454],
    ),
    "window": (
        lambda: optimizer.ModelAverage(0.5, min_average_window=2, max_average_window=3),
        [0.38, -0.14, -0.08],
    ),
}


def weighted_sum() -> Any:
    first = fluid.initializer.NumpyArrayInitializer(W)
    w = L.create_parameter([3], "float32", name="w", default_initializer=first)
    return L.reduce_sum(L.elementwise_mul(fluid.data("x", [None, 3]), w, axis=1))


def value() -> np.ndarray:
    return np.array(fluid.global_scope().find_var("w").get_tensor())


@pytest.mark.parametrize("kind", KINDS)
def test_averages_stand_in_for_parameters(kind: str) -> None:
    make, wanted = KINDS[kind]
    optimizer.SGD(0.1).minimize(weighted_sum())
    average = make()
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    for gradient in G:
        exe.run(feed={"x": gradient[None]})
    with average.apply(exe):
        np.testing.assert_allclose(value(), wanted, atol=2e-6)
    np.testing.assert_allclose(value(), TRAINED, atol=2e-6)
    with average.apply(exe, need_restore=False):
        pass
    assert not np.allclose(value(), TRAINED)
    average.restore(exe)
    np.testing.assert_allclose(value(), TRAINED, atol=2e-6)


def test_a_test_program_moves_no_average() -> None:
    optimizer.SGD(0.1).minimize(weighted_sum())
    moving(0.9)
    kinds = {op.type for op in fluid.default_main_program().clone(for_test=True).global_block().ops}
    assert kinds == {"elementwise_mul", "reduce_sum"}


def test_recomputing_is_the_optimizer_itself() -> None:
    loss = weighted_sum()
    made = optimizer.RecomputeOptimizer(optimizer.SGD(0.1))
    with pytest.raises(AssertionError, match="_set_checkpoints"):
        made.minimize(loss)
    made._set_checkpoints([loss])
    made.minimize(loss)
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    for gradient in G:
        exe.run(feed={"x": gradient[None]})
    np.testing.assert_allclose(value(), TRAINED, atol=2e-6)


@pytest.mark.parametrize("kind", ["ExponentialMovingAverage", "ModelAverage", "LookaheadOptimizer"])
def test_rows_of_a_table_have_no_average(kind: str) -> None:
    ids = fluid.data("ids", [None, 1], "int64")
    loss = L.mean(fluid.embedding(ids, [9, 2], is_sparse=True, param_attr="rows"))
    sgd = optimizer.SGD(0.1)
    sgd.minimize(loss)
    make: dict[str, Callable[[], object]] = {
        "ExponentialMovingAverage": optimizer.ExponentialMovingAverage,
        "ModelAverage": lambda: optimizer.ModelAverage(0.5),
        "LookaheadOptimizer": lambda: optimizer.LookaheadOptimizer(sgd).minimize(loss),
    }
    with pytest.raises(ConfigError, match=f"{kind} .*'rows'.*is_sparse=False"):
        make[kind]()
