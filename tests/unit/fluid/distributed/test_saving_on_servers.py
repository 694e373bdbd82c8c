"""Files of a program on servers equal those of one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.program_workers import (
    ProgramWorker,
    feeds_of,
    fleet_of,
    ids_and_numbers,
    make_worker,
    run_alone,
)
from tests.support.servers import JOB_KEY, NativeServers

from sparsefleet import fluid
from sparsefleet.errors import ConfigError
from sparsefleet.fluid.fleet import StrategyFactory

STEPS = 4


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[NativeServers]:
    monkeypatch.setenv("SPARSEFLEET_JOB_KEY", JOB_KEY.decode())
    with NativeServers(2) as started:
        yield started


def scheduled_adam() -> Any:
    return fluid.optimizer.Adam(fluid.layers.exponential_decay(0.05, 3, 0.7))


def only_worker(
    servers: NativeServers,
    optimizer: Callable[[], Any] = scheduled_adam,
    strategy: Any = StrategyFactory.create_sync_strategy,
    layers: Callable[[], fluid.Variable] = ids_and_numbers,
) -> ProgramWorker:
    worker = make_worker(fleet_of(servers, 0, 1), optimizer, strategy, layers)
    worker.scope = fluid.global_scope()
    worker.fleet.init_worker()
    worker.executor.run(worker.network.startup)
    return worker


@pytest.mark.parametrize(
    "optimizer",
    [
        scheduled_adam,
        lambda: fluid.optimizer.Adagrad(0.1, initial_accumulator_value=0.1),
        lambda: fluid.optimizer.Momentum(0.1, 0.9),
        lambda: fluid.optimizer.Ftrl(0.1, l1=0.01),
        lambda: fluid.optimizer.RMSProp(0.01, momentum=0.5, centered=True),
        lambda: fluid.optimizer.Adadelta(0.1),
        lambda: fluid.optimizer.LarsMomentum(0.5, 0.9),
        lambda: fluid.optimizer.LambOptimizer(0.05),
    ],
)
def test_saved_files_have_the_values_of_one_process(
    optimizer: Callable[[], Any], servers: NativeServers, tmp_path: Path
) -> None:
    feeds = feeds_of(0, STEPS)
    worker = only_worker(servers, optimizer)
    for feed in feeds:
        worker.run(feed)
    worker.fleet.save_persistables(worker.executor, tmp_path / "servers")
    worker.fleet.stop_worker()
    _, scope, alone = run_alone(optimizer, feeds)
    with fluid.scope_guard(scope):
        fluid.io.save_persistables(fluid.Executor(), tmp_path / "alone", alone.main)
    assert names_in(tmp_path / "servers") == names_in(tmp_path / "alone")
    found, wanted = fluid.Scope(), fluid.Scope()
    for folder, into in (("servers", found), ("alone", wanted)):
        with fluid.scope_guard(into):
            fluid.Executor().run(alone.startup)
            fluid.io.load_persistables(fluid.Executor(), tmp_path / folder, alone.main)
    for name in names_in(tmp_path / "alone"):
        np.testing.assert_allclose(
            np.array(found.find_var(name).get_tensor()),
            np.array(wanted.find_var(name).get_tensor()),
            rtol=1e-4,
            atol=1e-6,
            err_msg=name,
        )


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_training_continues_in_one_process_where_it_ended_on_servers(
    servers: NativeServers, tmp_path: Path
) -> None:
    feeds = feeds_of(0, 2 * STEPS)
    worker = only_worker(servers)
    for feed in feeds[:STEPS]:
        worker.run(feed)
    fluid.io.save_persistables(worker.executor, tmp_path, worker.network.main)
    worker.fleet.stop_worker()
    losses, _, alone = run_alone(scheduled_adam, feeds)
    executor = fluid.Executor()
    with fluid.scope_guard(fluid.Scope()):
        executor.run(alone.startup)
        fluid.io.load_persistables(executor, tmp_path, alone.main)
        found = [
            float(executor.run(alone.main, feed, [alone.loss])[0][0]) for feed in feeds[STEPS:]
        ]
    np.testing.assert_allclose(found, losses[STEPS:], rtol=1e-4)


@pytest.mark.parametrize(
    "optimizer",
    [
        scheduled_adam,
        lambda: fluid.optimizer.RMSProp(0.01, momentum=0.5),
        lambda: fluid.optimizer.LambOptimizer(0.05),
    ],
    ids=["adam", "rmsprop", "lamb"],
)
def test_training_resumes_on_other_servers_where_it_ended(
    optimizer: Callable[[], Any], servers: NativeServers, tmp_path: Path
) -> None:
    feeds = feeds_of(0, 2 * STEPS)
    worker = only_worker(servers, optimizer)
    for feed in feeds[:STEPS]:
        worker.run(feed)
    worker.fleet.save_persistables(worker.executor, tmp_path)
    worker.fleet.stop_worker()
    losses, _, _ = run_alone(optimizer, feeds)
    with NativeServers(3) as others:
        again = only_worker(others, optimizer)
        fluid.io.load_persistables(again.executor, tmp_path, again.network.main)
        found = [float(again.run(feed, [again.network.loss])[0][0]) for feed in feeds[STEPS:]]
        again.fleet.stop_worker()
    np.testing.assert_allclose(found, losses[STEPS:], rtol=1e-4)


def test_a_worker_loads_what_it_saved_after_the_job_and_predicts_alone(
    servers: NativeServers, tmp_path: Path
) -> None:
    worker = only_worker(servers, lambda: fluid.optimizer.SGD(0.1))
    feeds = feeds_of(0, STEPS)
    for feed in feeds:
        worker.run(feed)
    worker.fleet.save_persistables(worker.executor, tmp_path)
    fetch = [worker.network.loss]
    wanted = worker.executor.run(worker.network.main.clone(for_test=True), feeds[0], fetch)[0]
    worker.run(feeds[0])  # changes the values again
    worker.fleet.stop_worker()
    test = fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(test, fluid.Program()):
        loss = ids_and_numbers()
    fluid.io.load_persistables(worker.executor, tmp_path, test)
    found = worker.executor.run(test, feeds[0], [loss])[0]
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_inference_model_of_a_job_predicts_in_one_process(
    servers: NativeServers, tmp_path: Path
) -> None:
    worker = only_worker(servers, lambda: fluid.optimizer.SGD(0.1))
    feeds = feeds_of(0, STEPS)
    for feed in feeds:
        worker.run(feed)
    block = worker.network.main.global_block()
    target = block.var("fc_1.tmp_1")
    worker.fleet.save_inference_model(worker.executor, tmp_path, ["ids", "x"], [target])
    given = {"ids": feeds[0]["ids"], "x": feeds[0]["x"]}
    test = worker.network.main.clone(for_test=True)
    wanted = worker.executor.run(test, feeds[0], [target])[0]
    worker.fleet.stop_worker()
    with fluid.scope_guard(fluid.Scope()):
        executor = fluid.Executor()
        program, _, fetches = fluid.io.load_inference_model(tmp_path, executor)
        found = executor.run(program, given, fetches)[0]
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_saving_after_the_end_says_so(servers: NativeServers, tmp_path: Path) -> None:
    worker = only_worker(servers)
    worker.fleet.stop_worker()
    with pytest.raises(ConfigError, match="has ended"):
        worker.fleet.save_persistables(worker.executor, tmp_path)


def test_saving_asks_for_the_right_things(servers: NativeServers, tmp_path: Path) -> None:
    worker = only_worker(servers)
    with pytest.raises(TypeError, match="executor"):
        worker.fleet.save_persistables("exe", tmp_path)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="main_program"):
        worker.fleet.save_persistables(worker.executor, tmp_path, "program")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="does not belong to a parameter-server job"):
        worker.fleet.save_persistables(worker.executor, tmp_path, fluid.Program())
    worker.fleet.stop_worker()


def test_a_missing_file_is_named_and_changes_nothing(
    servers: NativeServers, tmp_path: Path
) -> None:
    worker = only_worker(servers)
    worker.run(feeds_of(0, 1)[0])
    worker.fleet.save_persistables(worker.executor, tmp_path)
    (tmp_path / "fc_0.w_0").unlink()
    before = worker.value("fc_1.w_0")
    with pytest.raises(RuntimeError, match="fc_0.w_0"):
        fluid.io.load_persistables(worker.executor, tmp_path, worker.network.main)
    np.testing.assert_array_equal(worker.value("fc_1.w_0"), before)
    worker.fleet.stop_worker()


def with_frozen_and_normed() -> fluid.Variable:
    """Build a loss with values that no server updates: statistics, a frozen layer and a frozen
    table.
    """
    ids = fluid.layers.data("ids", [1], dtype="int64")
    x = fluid.layers.data("x", [3])
    y = fluid.layers.data("y", [1])
    frozen = [fluid.ParamAttr(name=name, trainable=False) for name in ("layer", "rows")]
    rows = fluid.layers.embedding(ids, [50, 4], is_sparse=True, param_attr=frozen[1])
    hidden = fluid.layers.fc(x, 4, param_attr=frozen[0])
    normed = fluid.layers.batch_norm(fluid.layers.concat([hidden, rows], axis=1))
    return fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(normed, 1), y))


def test_a_worker_loads_what_servers_do_not_update(servers: NativeServers, tmp_path: Path) -> None:
    worker = only_worker(servers, layers=with_frozen_and_normed)
    feeds = feeds_of(0, 2 * STEPS)
    for name in ("layer", "rows"):
        worker.scope.find_var(name).get_tensor().set(np.full_like(worker.value(name), 0.5))
    for feed in feeds[:STEPS]:
        worker.run(feed)
    worker.fleet.save_persistables(worker.executor, tmp_path)
    names = ("batch_norm_0.w_1", "batch_norm_0.w_2", "layer", "rows")
    saved = {name: worker.value(name) for name in names}
    worker.fleet.stop_worker()
    with NativeServers(3) as others, fluid.scope_guard(fluid.Scope()):
        again = only_worker(others, layers=with_frozen_and_normed)
        fluid.io.load_persistables(again.executor, tmp_path, again.network.main)
        found = {name: again.value(name) for name in names}
        again.fleet.stop_worker()
    for name in names:
        np.testing.assert_array_equal(found[name], saved[name], err_msg=name)
