"""Adam on the rows of a table, against the same parameter as one tensor."""

from __future__ import annotations

import numpy as np
import pytest

from sparsefleet import fluid

L = fluid.layers
HEIGHT, STEPS = 60, 200


def moved(*, is_sparse: bool, lazy_mode: bool = False) -> np.ndarray:
    """Return how far rows moved when each is in about one batch of ten."""
    draw = np.random.default_rng(7)
    wanted = draw.normal(size=(HEIGHT, 4))
    with (
        fluid.program_guard(fluid.Program(), fluid.Program()),
        fluid.scope_guard(fluid.Scope()),
    ):
        ids, goal = fluid.data("ids", [None], "int64"), fluid.data("goal", [None, 4])
        zero = fluid.ParamAttr("rows", initializer=fluid.initializer.Constant(0.0))
        rows = fluid.embedding(ids, [HEIGHT, 4], is_sparse=is_sparse, param_attr=zero)
        loss = L.mean(L.square(rows - goal))
        fluid.optimizer.Adam(0.002, lazy_mode=lazy_mode).minimize(loss)
        exe = fluid.Executor()
        exe.run(fluid.default_startup_program())
        for _ in range(STEPS):
            chosen = draw.choice(HEIGHT, size=6, replace=False)
            noise = draw.normal(size=(6, 4))
            goals = (wanted[chosen] + 0.5 * noise).astype("float32")
            exe.run(feed={"ids": chosen, "goal": goals}, fetch_list=[loss])
        return np.array(fluid.global_scope().find_var("rows").get_tensor()).reshape(-1)


def test_rows_end_where_those_of_a_tensor_do() -> None:
    table, tensor = moved(is_sparse=True), moved(is_sparse=False)
    assert np.corrcoef(table, tensor)[0, 1] > 0.99
    assert table @ tensor / (tensor @ tensor) == pytest.approx(1.0, abs=0.1)


def test_lazy_rows_wait_for_their_gradients() -> None:
    lazy, tensor = moved(is_sparse=True, lazy_mode=True), moved(is_sparse=False)
    assert lazy @ tensor / (tensor @ tensor) < 0.5


def first_row(batches: list[int], *, is_sparse: bool) -> list[float]:
    """Return row 0 after each batch of one id, with a gradient of 1 and a rate of 0.1."""
    with (
        fluid.program_guard(fluid.Program(), fluid.Program()),
        fluid.scope_guard(fluid.Scope()),
    ):
        ids = fluid.data("ids", [None], "int64")
        zero = fluid.ParamAttr("rows", initializer=fluid.initializer.Constant(0.0))
        loss = L.reduce_sum(fluid.embedding(ids, [2, 1], is_sparse=is_sparse, param_attr=zero))
        look = fluid.default_main_program().clone(for_test=True)
        fluid.optimizer.Adam(0.1).minimize(loss)
        exe = fluid.Executor()
        exe.run(fluid.default_startup_program())
        found = []
        for chosen in batches:
            exe.run(feed={"ids": np.array([chosen])}, fetch_list=[loss])
            (value,) = exe.run(look, feed={"ids": np.array([0])}, fetch_list=[loss.name])
            found.append(value.item())
        return found


def test_a_row_of_each_batch_moves_like_that_of_a_tensor_from_the_first_step() -> None:
    table, tensor = (first_row([0] * 40, is_sparse=sparse) for sparse in (True, False))
    np.testing.assert_allclose(table, tensor, rtol=1e-3)


@pytest.mark.parametrize("begin", [0, 5, 20, 100])
def test_a_row_seen_once_never_moves_further_than_that_of_a_tensor(begin: int) -> None:
    batches = [1] * begin + [0] + [1] * 100
    table, tensor = (first_row(batches, is_sparse=sparse)[-1] for sparse in (True, False))
    assert tensor * 1.05 < table < 0.0
    assert abs(table - tensor) < 0.1 * 6, "six rates, for a row of the first batch"
