"""The fleet object of programs: its checks, its programs, its life cycle."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.program_workers import (
    Network,
    ProgramWorker,
    feeds_of,
    fleet_of,
    ids_and_numbers,
    make_worker,
    run_workers,
)
from tests.support.servers import JOB_KEY, NativeServers

from sparsefleet import fluid
from sparsefleet.errors import CheckpointError
from sparsefleet.fluid.distributed.saved_values import FolderLoad
from sparsefleet.fluid.distributed.update_rules import updates_of
from sparsefleet.fluid.fleet import (
    DistributeTranspilerConfig,
    Role,
    StrategyFactory,
    UserDefinedRoleMaker,
)
from sparsefleet.fluid.fleet.program_fleet import ProgramFleet

ENDPOINTS = ["127.0.0.1:9101", "127.0.0.1:9102"]


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[NativeServers]:
    monkeypatch.setenv("SPARSEFLEET_JOB_KEY", JOB_KEY.decode())
    with NativeServers(2) as started:
        yield started


def fleet_in(role: Role, worker_num: int = 2) -> ProgramFleet:
    fleet = ProgramFleet()
    fleet.init(UserDefinedRoleMaker(0, role, worker_num, ENDPOINTS))
    return fleet


def sgd() -> Any:
    return fluid.optimizer.SGD(0.1)


# -- building -------------------------------------------------------------------------------------


def test_a_workers_program_sends_gradients_and_updates_nothing() -> None:
    worker = make_worker(fleet_in(Role.WORKER), sgd)
    types = [op.type for op in worker.network.main.global_block().ops]
    assert types[-1] == "send"
    assert not {"sgd", "push_table"} & set(types)
    assert worker.network.startup.global_block().ops[-1].type == "recv"
    assert worker.fleet.main_program is worker.network.main
    assert worker.fleet.startup_program is worker.network.startup


def test_a_servers_program_serves() -> None:
    worker = make_worker(fleet_in(Role.SERVER), sgd)
    assert worker.fleet.main_program is not None
    assert [op.type for op in worker.fleet.main_program.global_block().ops] == ["listen_and_serve"]


def test_the_untouched_program_is_kept() -> None:
    worker = make_worker(fleet_in(Role.WORKER), sgd)
    assert worker.fleet._origin_program is not None
    assert "sgd" in [op.type for op in worker.fleet._origin_program.global_block().ops]


def test_weight_decay_is_left_to_the_servers() -> None:
    def decayed() -> Any:
        return fluid.optimizer.SGD(0.1, regularization=fluid.regularizer.L2Decay(0.01))

    worker = make_worker(fleet_in(Role.WORKER), decayed)
    types = [op.type for op in worker.network.main.global_block().ops]
    assert "decay_gradient" not in types


def test_parameters_with_other_rates_are_in_other_tables() -> None:
    def layers() -> fluid.Variable:
        x = fluid.layers.data("x", [2])
        slow = fluid.ParamAttr(name="slow", learning_rate=0.1)
        return fluid.layers.mean(fluid.layers.fc(x, 1, param_attr=slow))

    worker = make_worker(fleet_in(Role.WORKER), sgd, layers=layers)
    training = worker.network.main._distributed
    tables = training.source.tables.dense  # type: ignore[union-attr]
    assert sorted(len(table.updates) for table in tables) == [1, 1]


def test_an_update_that_servers_lack_is_named() -> None:
    network = Network.build(ids_and_numbers)
    with fluid.program_guard(network.main, network.startup):
        sgd().minimize(network.loss)
    update = next(op for op in network.main.global_block().ops if op.type == "sgd")
    update.type = "unheard"
    with pytest.raises(
        ValueError, match="'unheard', which servers do not support; they support adadelta, adagrad"
    ):
        updates_of(network.main, network.startup)


def test_parameters_scaled_by_their_norms_are_tables_of_their_own() -> None:
    worker = make_worker(fleet_in(Role.WORKER), lambda: fluid.optimizer.LambOptimizer(0.1))
    tables = worker.network.main._distributed.source.tables  # type: ignore[union-attr]
    assert [len(table.updates) for table in tables.dense] == [1] * 5
    assert not tables.sparse  # the embedding is one tensor


def test_geo_takes_plain_sgd_only() -> None:
    with pytest.raises(ValueError, match="GEO adds up"):
        make_worker(
            fleet_in(Role.WORKER),
            lambda: fluid.optimizer.Adam(0.1),
            StrategyFactory.create_geo_strategy,
        )


def test_a_rate_that_is_fed_is_refused() -> None:
    def fed() -> Any:
        return fluid.optimizer.SGD(fluid.layers.data("rate", [1], append_batch_size=False))

    with pytest.raises(ValueError, match="'rate', which is fed"):
        make_worker(fleet_in(Role.WORKER), fed)


def test_the_optimizer_and_the_strategy_are_checked() -> None:
    fleet = ProgramFleet()
    with pytest.raises(ValueError, match=r"fleet\.init"):
        fleet.distributed_optimizer(sgd())
    fleet = fleet_in(Role.WORKER)
    with pytest.raises(ValueError, match=r"fluid\.optimizer"):
        fleet.distributed_optimizer("sgd")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="StrategyFactory"):
        fleet.distributed_optimizer(sgd(), "sync")  # type: ignore[arg-type]
    network = Network.build(ids_and_numbers)
    optimizer = fleet.distributed_optimizer(sgd(), DistributeTranspilerConfig())
    with pytest.raises(TypeError, match="loss must be a Variable"):
        optimizer.minimize([network.loss])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="startup_program"):
        optimizer.minimize(network.loss, startup_program=[network.startup])  # type: ignore[arg-type]


def test_a_program_is_made_one_of_a_job_once() -> None:
    fleet = fleet_in(Role.WORKER)
    worker = make_worker(fleet, sgd)
    with (
        fluid.program_guard(worker.network.main, worker.network.startup),
        pytest.raises(ValueError, match="already belongs to a parameter-server job"),
    ):
        fleet.distributed_optimizer(sgd()).minimize(worker.network.loss)


# -- life ----------------------------------------------------------------------------------------


def test_calls_before_minimize_say_so() -> None:
    worker, server = fleet_in(Role.WORKER), fleet_in(Role.SERVER)
    for call in (server.init_server, server.run_server, worker.init_worker):
        with pytest.raises(ValueError, match="minimize"):
            call()
    with pytest.raises(RuntimeError, match="must follow init_worker"):
        worker.stop_worker()


def test_a_server_starts_from_a_directory_only(tmp_path: Path) -> None:
    worker = make_worker(fleet_in(Role.SERVER), sgd)
    with pytest.raises(ValueError, match="not a directory"):
        worker.fleet.init_server(tmp_path / "none")


def test_the_start_up_program_may_come_before_init_worker(servers: NativeServers) -> None:
    worker = make_worker(fleet_of(servers, 0, 1), sgd)
    worker.executor.run(worker.network.startup, scope=worker.scope)
    worker.fleet.init_worker()  # a warning, nothing else
    (feed,) = feeds_of(0, 1)
    assert worker.run(feed, [worker.network.loss])[0].shape == (1,)
    worker.fleet.stop_worker()


def test_stopping_after_the_executor_was_closed_is_nothing_more(servers: NativeServers) -> None:
    worker = make_worker(fleet_of(servers, 0, 1), sgd)
    worker.fleet.init_worker()
    worker.run(feeds_of(0, 1)[0])
    worker.executor.close()
    worker.fleet.stop_worker()


def test_stopping_ends_every_program_of_the_fleet(servers: NativeServers) -> None:
    fleet = fleet_of(servers, 0, 1)
    workers = [make_worker(fleet, sgd, layers=lambda n=n: named_layer(n)) for n in "ab"]
    fleet.init_worker()
    feed = {"x": np.ones((2, 3), np.float32)}
    for worker in workers:
        assert worker.run(feed, [worker.network.loss]) != worker.run(feed, [worker.network.loss])
    fleet.stop_worker()
    for worker in workers:
        with pytest.raises(ValueError, match="has ended"):
            worker.run(feed)


def named_layer(name: str) -> fluid.Variable:
    return fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", [3]), 2, name=name))


def test_programs_of_a_fleet_that_share_a_dense_parameter_are_refused() -> None:
    fleet = fleet_in(Role.WORKER)
    make_worker(fleet, sgd)
    with pytest.raises(ValueError, match=r"fc_0\.b_0.*used by another"):
        make_worker(fleet, sgd)


def test_a_run_after_the_end_says_so(servers: NativeServers) -> None:
    worker = make_worker(fleet_of(servers, 0, 1), sgd)
    worker.executor.run(worker.network.startup, scope=worker.scope)
    worker.executor.close()
    with pytest.raises(ValueError, match="has ended"):
        fluid.Executor().run(worker.network.main, feeds_of(0, 1)[0], scope=worker.scope)


def test_without_servers_the_program_trains_in_this_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("TRAINING_ROLE", "PADDLE_PSERVERS_IP_PORT_LIST", "PADDLE_TRAINERS_NUM"):
        monkeypatch.delenv(name, raising=False)
    fleet = ProgramFleet()
    fleet.init()
    worker = make_worker(fleet, lambda: fluid.optimizer.Adam(0.05))
    fleet.init_worker()
    worker.executor.run(worker.network.startup, scope=worker.scope)
    losses = [float(worker.run(feed, [worker.network.loss])[0][0]) for feed in feeds_of(0, 60)]
    fleet.stop_worker()
    assert np.mean(losses[-10:]) < 0.7 * np.mean(losses[:10])


def test_a_value_that_the_first_worker_sets_becomes_everybodys(servers: NativeServers) -> None:
    def work(worker: ProgramWorker) -> Any:
        if worker.fleet.is_first_worker():
            worker.scope.find_var("fc_1.b_0").get_tensor().set(np.array([7.0], np.float32))
            table = np.full((50, 4), 0.5, np.float32)
            worker.scope.find_var("embedding_0.w_0").get_tensor().set(table)
        worker.fleet.settle()
        return worker.value("fc_1.b_0"), worker.value("embedding_0.w_0")

    for bias, table in run_workers(servers, 2, work, sgd):
        np.testing.assert_array_equal(bias, [7.0])
        np.testing.assert_array_equal(table, np.full((50, 4), 0.5))


def test_sums_over_workers(servers: NativeServers) -> None:
    def work(worker: ProgramWorker) -> list[float]:
        total = np.zeros(2)
        rank = worker.fleet.worker_index()
        worker.fleet.all_reduce_worker(np.array([1.0, rank]), total)
        return list(total)

    assert run_workers(servers, 2, work, sgd) == [[2.0, 1.0], [2.0, 1.0]]


# -- a folder that the first server loads ---------------------------------------------------------


def saved_folder(servers: NativeServers, folder: Path) -> None:
    worker = make_worker(fleet_of(servers, 0, 1), lambda: fluid.optimizer.Adam(0.05))
    worker.fleet.init_worker()
    worker.executor.run(worker.network.startup)
    worker.executor.run(worker.network.main, feeds_of(0, 1)[0])
    worker.fleet.save_persistables(worker.executor, folder)
    worker.fleet.stop_worker()


def test_the_first_server_brings_a_saved_folder_to_all(
    servers: NativeServers, tmp_path: Path
) -> None:
    saved_folder(servers, tmp_path)
    wanted = fluid.Scope()
    network = Network.build(ids_and_numbers)
    with fluid.scope_guard(wanted):
        fluid.Executor().run(network.startup)
        fluid.io.load_persistables(fluid.Executor(), tmp_path, network.main)
    with served_from(tmp_path) as (others, load), load:
        found = run_workers(
            others, 2, lambda worker: worker.value("fc_0.w_0"), lambda: fluid.optimizer.Adam(0.05)
        )
    for value in found:
        np.testing.assert_array_equal(value, np.array(wanted.find_var("fc_0.w_0").get_tensor()))


def test_a_folder_that_does_not_fit_is_reported_by_the_workers(
    servers: NativeServers, tmp_path: Path
) -> None:
    saved_folder(servers, tmp_path)
    (tmp_path / "fc_0.w_0").unlink()
    with (
        served_from(tmp_path) as (others, load),
        load,
        pytest.raises(
            CheckpointError, match=r"server 0 could not load the saved folder: .*fc_0\.w_0"
        ),
    ):
        run_workers(others, 1, lambda _: None, lambda: fluid.optimizer.Adam(0.05))


@contextmanager
def served_from(folder: Path) -> Iterator[tuple[NativeServers, FolderLoad]]:
    """Start servers, the first of which has a folder to load."""
    probe = make_worker(fleet_in(Role.SERVER), lambda: fluid.optimizer.Adam(0.05))
    assert probe.fleet._server is not None
    source = probe.fleet._server._source
    note = FolderLoad(source, probe.fleet.role, str(folder), None).first_note()
    with NativeServers(2, notes=note) as servers:
        yield servers, FolderLoad(source, fleet_of(servers, 0, 1).role, str(folder), None)


def test_a_worker_that_need_not_wait_connects_at_its_first_run(servers: NativeServers) -> None:
    def at_once() -> Any:
        config = DistributeTranspilerConfig()
        config.sync_mode = False
        config.wait_port = False
        return config

    nowhere = ProgramFleet()
    nowhere.init(UserDefinedRoleMaker(0, Role.WORKER, 1, ["127.0.0.1:1"]))
    make_worker(nowhere, sgd, at_once)
    nowhere.init_worker()  # nobody listens there
    nowhere.stop_worker()
    worker = make_worker(fleet_of(servers, 0, 1), sgd, at_once)
    worker.fleet.init_worker()
    worker.executor.run(worker.network.startup, scope=worker.scope)
    first = worker.value("fc_0.w_0")
    worker.run(feeds_of(0, 1)[0])
    worker.fleet.model.flush()
    worker.fleet.stop_worker()
    assert np.abs(worker.value("fc_0.w_0") - first).max() > 0
