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
