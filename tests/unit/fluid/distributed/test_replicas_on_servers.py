"""CompiledProgram on servers: replicas are the threads of the mode."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.support.program_workers import ProgramWorker, feeds_of, run_alone, run_workers
from tests.support.servers import JOB_KEY, NativeServers

from sparsefleet import fluid
from sparsefleet.errors import SparseFleetError
from sparsefleet.fluid.fleet import StrategyFactory

FEEDS = feeds_of(5, 6)


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[NativeServers]:
    monkeypatch.setenv("SPARSEFLEET_JOB_KEY", JOB_KEY.decode())
    with NativeServers(2) as started:
        yield started


def train(worker: ProgramWorker, **settings: Any) -> tuple[list[Any], Any]:
    compiled = fluid.CompiledProgram(worker.network.main).with_data_parallel(
        loss_name=worker.network.loss.name, places=fluid.cpu_places(2), **settings
    )
    losses = [worker.run(feed, [worker.network.loss], compiled)[0] for feed in FEEDS]
    worker.fleet.settle()
    return losses, worker.value("fc_0.w_0")


@pytest.mark.parametrize(
    "strategy",
    [StrategyFactory.create_sync_strategy, StrategyFactory.create_half_async_strategy],
)
def test_replicas_of_one_worker_train_as_one_process(servers: NativeServers, strategy: Any) -> None:
    ((losses, weight),) = run_workers(
        servers, 1, train, lambda: fluid.optimizer.SGD(0.05), strategy
    )
    wanted, scope, _ = run_alone(lambda: fluid.optimizer.SGD(0.05), FEEDS)
    np.testing.assert_allclose([found.mean() for found in losses], wanted, rtol=1e-4)
    alone = np.array(scope.find_var("fc_0.w_0").get_tensor())
    np.testing.assert_allclose(weight, alone, rtol=1e-4, atol=1e-6)


def test_in_async_mode_the_first_replica_is_fetched(servers: NativeServers) -> None:
    made = StrategyFactory.create_async_strategy

    def work(worker: ProgramWorker) -> tuple[list[Any], Any]:
        strategy = made()
        return train(
            worker,
            build_strategy=strategy.get_build_strategy(),
            exec_strategy=strategy.get_execute_strategy(),
        )

    ((losses, weight),) = run_workers(servers, 1, work, lambda: fluid.optimizer.SGD(0.05), made)
    assert all(found.shape == (1,) for found in losses)
    assert np.isfinite(weight).all()


def test_an_error_in_one_replica_does_not_keep_the_other_waiting(servers: NativeServers) -> None:
    def work(worker: ProgramWorker) -> None:
        compiled = fluid.CompiledProgram(worker.network.main).with_data_parallel(
            loss_name=worker.network.loss.name, places=fluid.cpu_places(2)
        )
        short = {name: FEEDS[1][name] for name in ("ids", "x")}
        with pytest.raises(SparseFleetError, match="'y', which was not fed"):
            worker.run([FEEDS[0], short], None, compiled)

    run_workers(
        servers,
        1,
        work,
        lambda: fluid.optimizer.SGD(0.05),
        StrategyFactory.create_half_async_strategy,
    )
