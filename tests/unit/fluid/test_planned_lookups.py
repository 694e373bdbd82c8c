"""Which rows a program looks up is known before it runs, as far as its feeds decide."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sparsefleet import fluid
from sparsefleet.fluid.executor.program_workload import feed_of
from sparsefleet.fluid.lowering.lower import lower
from sparsefleet.fluid.lowering.lowered import Lowered
from sparsefleet.nn.pulled_rows import plan_rows, pull_rows
from sparsefleet.nn.step_rows import StepRows

L = fluid.layers
IDS = np.array([[3], [5], [3]])
PAIRS = np.array([[3, 8], [5, 9], [3, 8]])


def rows_of(ids: Any, name: str = "table", **settings: Any) -> Any:
    attr = fluid.ParamAttr(name=name, initializer=fluid.initializer.Uniform(seed=4))
    return L.embedding(ids, [50, 2], is_sparse=True, param_attr=attr, **settings)


def from_feed() -> Any:
    return rows_of(fluid.data("ids", [None, 1], "int64"), padding_idx=5)


def from_reshaped() -> Any:
    return rows_of(L.reshape(fluid.data("pairs", [None, 2], "int64"), [-1, 1]))


def from_slice() -> Any:
    return rows_of(L.slice(fluid.data("pairs", [None, 2], "int64"), [1], [1], [2]))


def from_hash() -> Any:
    hashed = L.hash(fluid.data("pairs", [None, 2], "int64"), 40)
    return rows_of(L.reshape(hashed, [-1, 1]))


def from_bags() -> Any:
    ids = L.data("bags", [1], dtype="int64", lod_level=1)
    return L.sequence_pool(rows_of(ids), "sum")


def from_parameter() -> Any:
    start = L.create_parameter(
        [1], "int64", "start", default_initializer=fluid.initializer.Constant(2)
    )
    start.stop_gradient = True
    return rows_of(L.elementwise_add(fluid.data("ids", [None, 1], "int64"), start))


def from_print() -> Any:
    return rows_of(L.Print(fluid.data("ids", [None, 1], "int64")))


def feed() -> dict[str, Any]:
    bags = fluid.create_lod_tensor(IDS, [[2, 1]], fluid.CPUPlace())
    data = {"ids": IDS, "pairs": PAIRS, "bags": bags}
    return {
        name: data[name]
        for name in data
        if fluid.default_main_program().global_block().has_var(name)
    }


def lowered(rows: Any) -> tuple[Lowered, Any]:
    fluid.optimizer.SGD(0.5).minimize(L.reduce_sum(L.square(rows)))
    program = fluid.default_main_program()
    fed = feed_of(program, feed())
    return lower(program, fed[0], [rows.name], with_lod=fed[1]), fed


def planned_ids(rows: Any) -> list[Any]:
    made, fed = lowered(rows)
    assert made.plan is not None
    return [lookup.ids.tolist() for lookup in made.plan.lookups(fed[0], made.ids(*fed))]


@pytest.mark.parametrize(
    ("build", "ids"),
    [
        (from_feed, [3, 5, 3]),
        (from_reshaped, [3, 8, 5, 9, 3, 8]),
        (from_slice, [8, 9, 8]),
        (from_bags, [3, 5, 3]),
        (from_parameter, None),
        (from_print, None),
    ],
)
def test_ids_that_depend_on_feeds_alone_are_planned(
    build: Callable[[], Any], ids: list[int] | None
) -> None:
    assert planned_ids(build()) == ([] if ids is None else [ids])


def test_hashed_ids_are_computed_once_by_the_plan() -> None:
    made, fed = lowered(from_hash())
    assert made.plan is not None
    (found,) = made.plan.lookups(fed[0], made.ids(*fed))
    assert found.ids.max() < 40
    targets = [getattr(node.target, "__name__", "") for node in made.module.graph.nodes]
    assert "hash" not in targets


@pytest.mark.parametrize(
    "build", [from_feed, from_reshaped, from_slice, from_hash, from_bags, from_parameter]
)
def test_rows_that_are_given_are_looked_up_and_trained(build: Callable[[], Any]) -> None:
    """A run gets its rows, or pulls them; the results and the training are the same."""
    rows = build()
    made, fed = lowered(rows)
    exe = fluid.Executor()
    found = []
    for is_given in (False, True):
        scope, asked = fluid.Scope(), []
        exe.run(fluid.default_startup_program(), scope=scope)
        table = scope.find_var("table").value()

        def pull(keys: Any, /, *, table: Any = table, asked: Any = asked, **how: Any) -> Any:
            asked.append(sorted(keys["table"].tolist()))
            return {"table": table.pull(keys["table"], train=how.get("train", True))}

        def state_of(name: str, scope: Any = scope) -> Any:
            return scope.find_var(name).value()

        step, ids = None, None
        if is_given:
            assert made.plan is not None
            ids = made.ids(*fed)
            planned = made.plan.lookups(fed[0], ids)
            step = StepRows(pull, pulled=pull_rows(planned, pull))
        result = made.run(*fed, state_of, step, ids)
        assert len(asked) == is_given  # one request, of planned ids or, if there are none, later
        found.append((result.fetched[0].detach().numpy(), np.array(table)))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_array_equal(found[0][1], found[1][1])


def test_lookups_of_one_table_share_their_rows() -> None:
    first, second = (fluid.data(name, [None, 1], "int64") for name in ("ids", "pairs_0"))
    total = L.elementwise_add(rows_of(first), rows_of(second))
    fluid.optimizer.SGD(0.5).minimize(L.reduce_sum(total))
    program = fluid.default_main_program()
    fed = feed_of(program, {"ids": IDS, "pairs_0": IDS + 1})
    made = lower(program, fed[0], [total.name])
    assert made.plan is not None
    assert len(made.plan) == 2
    pulled = plan_rows(made.plan.lookups(fed[0], ()))
    assert pulled.tables["table"].keys.tolist() == [3, 5, 4, 6]


def test_a_fetched_value_is_still_computed() -> None:
    pairs = fluid.data("pairs", [None, 2], "int64")
    ids = L.reshape(pairs, [-1, 1])
    rows = rows_of(ids)
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    found, _ = exe.run(feed={"pairs": PAIRS}, fetch_list=[ids, rows])
    assert found.reshape(-1).tolist() == PAIRS.reshape(-1).tolist()


def test_recomputed_segments_survive_what_moves_into_the_plan() -> None:
    pairs = fluid.data("pairs", [None, 2], "int64")
    hidden = L.fc(rows_of(L.reshape(pairs, [-1, 1])), 3, act="relu")
    loss = L.reduce_mean(L.fc(hidden, 1))
    optimizer = fluid.optimizer.RecomputeOptimizer(fluid.optimizer.SGD(0.1))
    optimizer._set_checkpoints([hidden])
    optimizer.minimize(loss)
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    before = exe.run(feed={"pairs": PAIRS}, fetch_list=[loss])[0]
    after = exe.run(feed={"pairs": PAIRS}, fetch_list=[loss])[0]
    assert after < before
