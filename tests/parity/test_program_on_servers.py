"""A program on servers computes what it computes in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tests.support.program_workers import (
    ProgramWorker,
    feeds_of,
    joined,
    run_alone,
    run_workers,
)
from tests.support.servers import JOB_KEY, NativeServers

from sparsefleet import fluid
from sparsefleet.fluid.fleet import StrategyFactory
from sparsefleet.fluid.operators.schedules import _decay_step_counter

STEPS = 6
DENSE = ("fc_0.w_0", "fc_0.b_0", "fc_1.w_0", "fc_1.b_0")


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[NativeServers]:
    monkeypatch.setenv("SPARSEFLEET_JOB_KEY", JOB_KEY.decode())
    with NativeServers(2) as started:
        yield started


def decayed() -> Any:
    rate = fluid.layers.exponential_decay(0.1, decay_steps=2, decay_rate=0.5)
    return fluid.optimizer.SGD(rate)


def switched() -> Any:
    """Return a schedule written with operators: 0.1, then 0.02 from step 3 on."""
    step = fluid.layers.cast(_decay_step_counter(), "float32")
    rate = fluid.layers.create_global_var([1], 0.1, "float32", persistable=True, name="rate")
    late = fluid.layers.fill_constant([1], "float32", 3.0)
    with fluid.layers.control_flow.Switch() as switch, switch.case(step >= late):
        fluid.layers.assign(fluid.layers.fill_constant([1], "float32", 0.02), rate)
    return fluid.optimizer.SGD(rate)


def regularized() -> Any:
    return fluid.optimizer.Momentum(
        0.05, 0.9, regularization=fluid.regularizer.L2Decay(0.1), use_nesterov=True
    )


def centered() -> Any:
    """RMSProp with a changing rate: its momentum holds steps scaled by the rates at the time."""
    rate = fluid.layers.exponential_decay(0.02, decay_steps=2, decay_rate=0.5)
    return fluid.optimizer.RMSProp(rate, momentum=0.6, centered=True, epsilon=1e-3)


def clipped() -> Any:
    return fluid.optimizer.Adagrad(0.1, grad_clip=fluid.clip.GradientClipByValue(0.05))


def clipped_together() -> Any:
    """Clip all gradients, including the table's, by their common norm; then decay."""
    return fluid.optimizer.Adam(
        0.01,
        grad_clip=fluid.clip.GradientClipByGlobalNorm(0.5),
        regularization=fluid.regularizer.L2Decay(0.1),
    )


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: fluid.optimizer.SGD(0.1),
    "schedule": decayed,
    "switched": switched,
    "regularized": regularized,
    "clipped": clipped,
    "clipped_together": clipped_together,
    "adam": lambda: fluid.optimizer.Adam(0.01),
    "adamax": lambda: fluid.optimizer.Adamax(0.01),
    "decayed_adagrad": lambda: fluid.optimizer.DecayedAdagrad(0.05),
    "ftrl": lambda: fluid.optimizer.Ftrl(0.1, l1=0.001, l2=0.01),
    "rmsprop": lambda: fluid.optimizer.RMSProp(0.01),
    "rmsprop_centered": centered,
    "adadelta": lambda: fluid.optimizer.Adadelta(0.1, epsilon=1e-3, rho=0.9),
    "lars": lambda: fluid.optimizer.LarsMomentum(0.5, 0.9, lars_coeff=0.05),
    "lamb": lambda: fluid.optimizer.LambOptimizer(0.05),
    "lamb_regularized": lambda: fluid.optimizer.LambOptimizer(
        0.05, regularization=fluid.regularizer.L2Decay(0.1)
    ),
}
NEW = ("rmsprop_centered", "adadelta", "lars", "lamb")


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_sync_of_two_workers_is_one_process_on_the_joined_batch(
    name: str, servers: NativeServers
) -> None:
    feeds = [feeds_of(rank, STEPS) for rank in range(2)]

    def work(worker: ProgramWorker) -> dict[str, Any]:
        rank = worker.fleet.worker_index()
        for feed in feeds[rank]:
            worker.run(feed, [worker.network.loss])
        return {name: worker.value(name) for name in (*DENSE, "embedding_0.w_0")}

    if name.startswith("clipped"):  # each worker clips its own gradient, as Fluid's do
        feeds[1] = feeds[0]
    found = run_workers(servers, 2, work, OPTIMIZERS[name], StrategyFactory.create_sync_strategy)
    batches = [joined([feeds[0][i], feeds[1][i]]) for i in range(STEPS)]
    _, scope, _ = run_alone(OPTIMIZERS[name], batches)
    # Ftrl subtracts roots of sums of squares: where gradients are tiny, that magnifies rounding.
    rtol = 1e-3 if name == "ftrl" else 2e-4
    for parameter in (*DENSE, "embedding_0.w_0"):
        wanted = np.array(scope.find_var(parameter).get_tensor())
        np.testing.assert_allclose(found[0][parameter], wanted, rtol=rtol, atol=2e-6)
        np.testing.assert_array_equal(found[0][parameter], found[1][parameter])


def looped() -> fluid.Variable:
    """A layer applied three times in a loop, and one in a branch that some batches take."""
    layers = fluid.layers
    ids, x, y = layers.data("ids", [1], dtype="int64"), layers.data("x", [3]), layers.data("y", [1])
    rows = layers.embedding(ids, [50, 4], is_sparse=True)
    first = layers.fc(layers.concat([x, rows], axis=1), 5, act="tanh")
    three = layers.fill_constant([1], "int64", 3)

    def again(number: fluid.Variable, hidden: fluid.Variable) -> list[fluid.Variable]:
        made = layers.fc(hidden, 5, act="tanh", param_attr="loop_w", bias_attr=False)
        return [number + 1, made]

    zero = layers.fill_constant([1], "int64", 0)
    _, hidden = layers.while_loop(lambda number, _: number < three, again, [zero, first])
    chosen = layers.cond(
        layers.mean(x) > 0.0,
        lambda: layers.fc(hidden, 5, param_attr="branch_w", bias_attr=False),
        lambda: hidden * 2.0,
    )
    return layers.mean(layers.square_error_cost(layers.fc(chosen, 1, param_attr="last_w"), y))


def test_loops_and_branches_train_on_servers(servers: NativeServers) -> None:
    feeds = feeds_of(0, STEPS)
    names = ("fc_0.w_0", "loop_w", "branch_w", "last_w", "embedding_0.w_0")

    def work(worker: ProgramWorker) -> dict[str, Any]:
        for feed in feeds:
            worker.run(feed, [worker.network.loss])
        return {name: worker.value(name) for name in names}

    optimizer, strategy = OPTIMIZERS["sgd"], StrategyFactory.create_sync_strategy
    (found,) = run_workers(servers, 1, work, optimizer, strategy, looped)
    _, scope, _ = run_alone(optimizer, feeds, looped)
    for name, value in found.items():
        wanted = np.array(scope.find_var(name).get_tensor())
        np.testing.assert_allclose(value, wanted, rtol=2e-4, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("strategy", ["half_async", "async"])
@pytest.mark.parametrize("name", NEW)
def test_one_worker_of_the_other_modes_is_one_process(
    name: str, strategy: str, servers: NativeServers
) -> None:
    feeds = feeds_of(0, STEPS)

    def work(worker: ProgramWorker) -> dict[str, Any]:
        for feed in feeds:
            worker.run(feed, [worker.network.loss])
            model = worker.network.main._distributed.model  # type: ignore[union-attr]
            model.finish()  # async: one gradient at a time, and the values that it made
            model.start()
        return {name: worker.value(name) for name in (*DENSE, "embedding_0.w_0")}

    make = getattr(StrategyFactory, f"create_{strategy}_strategy")
    (found,) = run_workers(servers, 1, work, OPTIMIZERS[name], make)
    _, scope, _ = run_alone(OPTIMIZERS[name], feeds)
    for parameter, value in found.items():
        wanted = np.array(scope.find_var(parameter).get_tensor())
        np.testing.assert_allclose(value, wanted, rtol=2e-4, atol=2e-6, err_msg=parameter)


def test_lars_takes_the_norm_of_a_parameter_that_two_servers_could_share(
    servers: NativeServers,
) -> None:
    def wide() -> fluid.Variable:
        x = fluid.layers.data("x", [3])
        hidden = fluid.layers.fc(x, 9000, act="tanh")  # 27,000 values: three blocks
        return fluid.layers.mean(fluid.layers.fc(hidden, 1))

    feeds = [{"x": feed["x"]} for feed in feeds_of(0, STEPS)]

    def work(worker: ProgramWorker) -> Any:
        for feed in feeds:
            worker.run(feed)
        return worker.value("fc_0.w_0")

    sync = StrategyFactory.create_sync_strategy
    (found,) = run_workers(servers, 1, work, OPTIMIZERS["lars"], sync, wide)
    _, scope, _ = run_alone(OPTIMIZERS["lars"], feeds, wide)
    wanted = np.array(scope.find_var("fc_0.w_0").get_tensor())
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-7)


def own_settings() -> fluid.Variable:
    """A table that is looked up twice, and parameters with individual rates and decay."""
    ids = fluid.layers.data("ids", [1], dtype="int64")
    x = fluid.layers.data("x", [3])
    y = fluid.layers.data("y", [1])
    decay = fluid.regularizer.L2Decay(0.2)
    shared = fluid.ParamAttr(name="rows", learning_rate=0.5, regularizer=decay)
    found = [
        fluid.layers.embedding(ids, [50, 4], is_sparse=True, param_attr=shared, padding_idx=padding)
        for padding in (None, 3)
    ]
    hidden = fluid.layers.fc(
        fluid.layers.concat([x, found[0], fluid.layers.tanh(found[1])], axis=1),
        5,
        act="tanh",
        param_attr=fluid.ParamAttr(name="fast", learning_rate=2.0),
        bias_attr=fluid.ParamAttr(name="still", learning_rate=0.0),
    )
    return fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(hidden, 1), y))


@pytest.mark.parametrize("name", ["adam", "schedule"])
def test_settings_of_single_parameters_count_on_servers(name: str, servers: NativeServers) -> None:
    feeds = [feeds_of(rank, STEPS) for rank in range(2)]
    names = ("rows", "fast", "still", "fc_1.w_0")

    def work(worker: ProgramWorker) -> dict[str, Any]:
        for feed in feeds[worker.fleet.worker_index()]:
            worker.run(feed)
        return {name: worker.value(name) for name in names}

    strategy = StrategyFactory.create_sync_strategy
    found = run_workers(servers, 2, work, OPTIMIZERS[name], strategy, own_settings)
    batches = [joined([feeds[0][i], feeds[1][i]]) for i in range(STEPS)]
    _, scope, _ = run_alone(OPTIMIZERS[name], batches, own_settings)
    for parameter in names:
        wanted = np.array(scope.find_var(parameter).get_tensor())
        np.testing.assert_allclose(found[0][parameter], wanted, rtol=2e-4, atol=2e-6)
