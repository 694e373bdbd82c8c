"""Modes through the Fluid API, on fixed schedules, against the rules of Fluid 1.8.5.

The loss is sum(x * w) + sum(y * rows[ids]), so a batch of one example has the gradients x and y.
Numbers marked as measured were seen on 1.8.5 itself, with one server and two trainers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.fleet_workers import ENDED_WITHIN_S
from tests.support.program_workers import Feed, ProgramWorker, fleet_of, make_worker
from tests.support.servers import JOB_KEY, NativeServers

from sparsefleet import fluid
from sparsefleet.fluid.fleet import StrategyFactory

RATE = 0.1
ROWS, WIDTH = 4, 2
Floats = NDArray[np.float64]


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[NativeServers]:
    monkeypatch.setenv("SPARSEFLEET_JOB_KEY", JOB_KEY.decode())
    with NativeServers(2) as started:
        yield started


def given_gradients() -> fluid.Variable:
    zero = fluid.initializer.Constant(0.0)
    x = fluid.layers.data("x", [WIDTH])
    y = fluid.layers.data("y", [WIDTH])
    ids = fluid.layers.data("ids", [1], dtype="int64")
    w = fluid.layers.create_parameter([WIDTH], "float32", name="w", default_initializer=zero)
    attr = fluid.ParamAttr(name="rows", initializer=zero)
    rows = fluid.layers.embedding(ids, [ROWS, WIDTH], is_sparse=True, param_attr=attr)
    return fluid.layers.elementwise_add(
        fluid.layers.reduce_sum(fluid.layers.elementwise_mul(x, w)),
        fluid.layers.reduce_sum(fluid.layers.elementwise_mul(y, rows)),
    )


def batch(x: Any, row: int, y: Any) -> Feed:
    return {
        "x": np.broadcast_to(np.float32(x), (1, WIDTH)).copy(),
        "y": np.broadcast_to(np.float32(y), (1, WIDTH)).copy(),
        "ids": np.array([[row]]),
    }


@contextmanager
def two_workers(
    servers: NativeServers, strategy: Callable[[], Any]
) -> Iterator[tuple[list[ProgramWorker], ThreadPoolExecutor]]:
    def sgd() -> Any:
        return fluid.optimizer.SGD(RATE)

    workers = [
        make_worker(fleet_of(servers, rank, 2), sgd, strategy, given_gradients) for rank in range(2)
    ]

    def begin(worker: ProgramWorker) -> None:
        worker.fleet.init_worker()
        worker.executor.run(worker.network.startup, scope=worker.scope)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(begin, workers, timeout=ENDED_WITHIN_S))
        try:
            yield workers, pool
        finally:
            list(pool.map(lambda worker: worker.fleet.stop_worker(), workers))


def served(worker: ProgramWorker) -> tuple[Floats, Floats]:
    """Return what the servers hold: w and all rows."""
    model = worker.fleet.model
    (table,) = model.flat.arrays
    rows = model.store.pull("rows", np.arange(ROWS, dtype=np.uint64), train=False)
    return model.store.pull_dense(table).astype(float), rows.astype(float)


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + ENDED_WITHIN_S
    while not holds():
        assert time.monotonic() < deadline, "the condition never held"
        time.sleep(0.002)


class GeoRule:
    """A model of 1.8.5's servers and trainers; sparse rows are one array used by all."""

    def __init__(self, trainers: int) -> None:
        self.trainers = trainers
        self.server = (np.zeros(WIDTH), np.zeros((ROWS, WIDTH)))
        self.train = [(np.zeros(WIDTH), np.zeros((ROWS, WIDTH))) for _ in range(trainers)]
        self.old = [(np.zeros(WIDTH), np.zeros((ROWS, WIDTH))) for _ in range(trainers)]
        self.changed: list[set[int]] = [set() for _ in range(trainers)]

    def step(self, at: int, feed: Feed) -> None:
        w, rows = self.train[at]
        w -= RATE * feed["x"][0]
        rows[int(feed["ids"][0, 0])] -= RATE * feed["y"][0]

    def exchange(self, at: int, window: list[Feed]) -> None:
        ids = sorted({int(feed["ids"][0, 0]) for feed in window})
        for part, touched in ((0, slice(None)), (1, ids)):
            train, old, server = self.train[at][part], self.old[at][part], self.server[part]
            delta = (train[touched] - old[touched]) / self.trainers
            old[touched] += delta
            server[touched] += delta
        for changed in self.changed:
            changed |= set(ids)
        fetched, self.changed[at] = sorted(self.changed[at]), set()
        for part, taken in ((0, slice(None)), (1, fetched)):
            train, old, server = self.train[at][part], self.old[at][part], self.server[part]
            train[taken] += server[taken] - old[taken]
            old[taken] = server[taken]


def test_geo_follows_the_originals_rule_over_a_fixed_schedule(servers: NativeServers) -> None:
    rng = np.random.default_rng(7)
    window = 4
    rule = GeoRule(2)
    with two_workers(servers, lambda: StrategyFactory.create_geo_strategy(window)) as (workers, _):
        for number, at in enumerate([0, 1, 0, 0, 1, 1, 0, 1]):
            worker = workers[at]
            # At first each worker uses all rows: here a row is fetched when it is first used.
            ids = range(ROWS) if number < 2 else rng.integers(0, ROWS, window)
            feeds = [batch(rng.normal(size=WIDTH), row, rng.normal(size=WIDTH)) for row in ids]
            for feed in feeds:
                worker.run(feed)
                rule.step(at, feed)
            windows = worker.fleet.model.mode._windows
            until(lambda windows=windows: windows.open_steps == 0)  # type: ignore[misc]
            rule.exchange(at, feeds)
            for found, wanted in zip(served(worker), rule.server, strict=True):
                np.testing.assert_allclose(found, wanted, atol=1e-6, err_msg=f"window {number}")
            np.testing.assert_allclose(
                worker.value("w"), rule.train[at][0], atol=1e-6, err_msg=f"window {number}"
            )


def test_geo_sends_the_rest_of_a_change_in_later_windows_as_measured(
    servers: NativeServers,
) -> None:
    with two_workers(servers, lambda: StrategyFactory.create_geo_strategy(2)) as (workers, _):
        seen = []
        for _ in range(3):
            for _ in range(2):  # together -0.2
                workers[0].run(batch(0.0, 1, 1.0))
            windows = workers[0].fleet.model.mode._windows
            until(lambda windows=windows: windows.open_steps == 0)  # type: ignore[misc]
            seen.append(served(workers[0])[1][1, 0])
    np.testing.assert_allclose(seen, [-0.1, -0.25, -0.425], atol=1e-6)


def test_async_applies_each_gradient_and_refreshes_after_every_second_as_measured(
    servers: NativeServers,
) -> None:
    with two_workers(servers, StrategyFactory.create_async_strategy) as (workers, _):
        first = workers[0]
        for number in range(1, 5):
            first.run(batch(1.0, 1, 1.0))
            until(lambda n=number: bool(np.allclose(served(first)[0], -RATE * n)))  # type: ignore[misc]
            # More than communicator_min_send_grad_num_before_recv = 1 gradients, then all again.
            held = -RATE * (number - number % 2)
            until(lambda held=held: bool(np.allclose(first.value("w"), held)))  # type: ignore[misc]
            assert served(first)[1][1, 0] == pytest.approx(-RATE * number)


@pytest.mark.parametrize(
    ("mode", "total"),
    [("sync", -0.2 - 0.6), ("half_async", -0.4 - 1.2), ("async", -1.6)],
)
def test_gradients_of_two_workers_end_as_measured(
    mode: str, total: float, servers: NativeServers
) -> None:
    """Gradients 1 and 3, then 5 and 7, on separate rows and on w: sums, but means in sync."""
    strategy = getattr(StrategyFactory, f"create_{mode}_strategy")
    gradients = [[1.0, 5.0], [3.0, 7.0]]
    with two_workers(servers, strategy) as (workers, pool):

        def train(rank: int) -> None:
            for gradient in gradients[rank]:
                workers[rank].run(batch(gradient, rank, gradient))
            workers[rank].fleet.model.flush()

        list(pool.map(train, range(2), timeout=ENDED_WITHIN_S))
        w, rows = served(workers[0])
    np.testing.assert_allclose(w, total, atol=1e-6)
    share = 2 if mode == "sync" else 1
    np.testing.assert_allclose(rows[:2, 0], [-RATE * 6 / share, -RATE * 10 / share], atol=1e-6)
