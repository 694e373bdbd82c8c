"""Passes of a program over a Dataset on servers: requests per step, resuming, and equality."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.program_workers import (
    Feed,
    Network,
    ProgramWorker,
    feeds_of,
    ids_and_numbers,
    run_workers,
)
from tests.support.saved_training import StoppedError, assert_same, contents
from tests.support.servers import NativeServers

from sparsefleet import fluid
from sparsefleet.checkpoint import latest
from sparsefleet.errors import ConfigError, SparseFleetError
from sparsefleet.fluid.fleet import StrategyFactory
from sparsefleet.train import CheckpointConfig

pytestmark = pytest.mark.usefixtures("job_key")

BATCHES = 20
STRATEGIES: dict[str, Any] = {
    "sync": StrategyFactory.create_sync_strategy,
    "half_async": StrategyFactory.create_half_async_strategy,
    "async": StrategyFactory.create_async_strategy,
    "geo": lambda: StrategyFactory.create_geo_strategy(update_frequency=3),
}


class Feeds:
    """A minimal Dataset over feeds in memory, for `train_from_dataset`.

    stop_after: passes end with an error after this many feeds.
    """

    thread_num = 1
    filelist = ("memory",)

    def __init__(self, feeds: list[Feed], stop_after: int | None = None) -> None:
        self._feeds = feeds
        self._left = stop_after

    def __iter__(self) -> Iterator[Feed]:
        for feed in self._feeds:
            if self._left is not None:
                if self._left == 0:
                    raise StoppedError("the data has come to the end of the test")
                self._left -= 1
            yield feed


def requests(servers: NativeServers) -> dict[str, float]:
    """Return how many requests of each kind the servers have received."""
    found: dict[str, float] = {}
    with servers.connect() as store:
        for stats in store.stats():
            for name, value in stats.items():
                if name.startswith("server.requests."):
                    kind = name.removeprefix("server.requests.")
                    found[kind] = found.get(kind, 0) + value
    return found


@pytest.mark.parametrize("mode", ["sync", "half_async"])
def test_a_step_is_one_request_per_server(mode: str) -> None:
    with NativeServers(2) as servers:

        def work(worker: ProgramWorker) -> dict[str, float]:
            data = Feeds(feeds_of(1, BATCHES))
            worker.executor.train_from_dataset(worker.network.main, data, worker.scope)
            before = requests(servers)
            worker.executor.train_from_dataset(worker.network.main, data, worker.scope)
            after = requests(servers)
            return {kind: after[kind] - before.get(kind, 0) for kind in after}

        (asked,) = run_workers(
            servers, 1, work, lambda: fluid.optimizer.SGD(0.05), STRATEGIES[mode], ids_and_numbers
        )
    pushes = asked.get("push", 0) + asked.get("push_round", 0)
    assert pushes == 2 * BATCHES
    # The first step of the pass pulls its rows; `flush` at its end fetches the dense values.
    assert asked.get("pull", 0) <= 2 * 3, asked


@pytest.mark.parametrize("mode", STRATEGIES)
def test_a_pass_trains_as_single_runs_do(mode: str) -> None:
    """One thread of one worker: rows that come ahead are those that a run would pull."""

    def train(by_pass: bool) -> dict[str, Any]:
        def work(worker: ProgramWorker) -> dict[str, Any]:
            feeds = feeds_of(1, BATCHES)
            if by_pass:
                worker.executor.train_from_dataset(worker.network.main, Feeds(feeds), worker.scope)
            else:
                for feed in feeds:
                    worker.run(feed)
            worker.fleet.settle()
            names = [parameter.name for parameter in worker.network.main.all_parameters()]
            return {name: worker.value(name) for name in names}

        with NativeServers(2) as servers:
            (found,) = run_workers(
                servers, 1, work, lambda: fluid.optimizer.SGD(0.05), STRATEGIES[mode]
            )
        return found

    if mode in ("sync", "half_async"):
        assert_same(train(True), train(False))
    else:
        by_pass, by_runs = train(True), train(False)
        for name, value in by_pass.items():
            np.testing.assert_allclose(value, by_runs[name], atol=0.05, err_msg=name)


def test_inference_over_a_dataset_reads_rows_and_creates_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def work(worker: ProgramWorker) -> tuple[float, float, list[float]]:
        executor, loss = worker.executor, worker.network.loss
        test = worker.network.main.clone(for_test=True)
        seen = [{**feed, "ids": feed["ids"] % 5} for feed in feeds_of(1, 4)]
        executor.train_from_dataset(worker.network.main, Feeds(seen), worker.scope)
        before = worker.fleet.model.store.info("embedding_0.w_0").size
        feeds = feeds_of(2, 3)
        executor.infer_from_dataset(
            test, Feeds(feeds), worker.scope, fetch_list=[loss], fetch_info=["loss"], print_period=1
        )
        after = worker.fleet.model.store.info("embedding_0.w_0").size
        return before, after, [float(worker.run(f, [loss], test)[0].item()) for f in feeds]

    with NativeServers(2) as servers:
        ((before, after, losses),) = run_workers(
            servers, 1, work, lambda: fluid.optimizer.SGD(0.1), STRATEGIES["async"]
        )
    assert before == after == 5
    printed = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    shown = [float(parts[2]) for parts in printed if parts[0] == "loss"]
    np.testing.assert_allclose(shown, losses, rtol=1e-4)


def two_terms() -> fluid.Variable:
    """Two parameters whose gradients are the same tensor."""
    x, y = fluid.layers.data("x", [3]), fluid.layers.data("y", [1])
    terms = [
        fluid.layers.create_parameter([3, 1], "float32", name=f"term_{number}")
        for number in range(2)
    ]
    weight = fluid.layers.elementwise_add(*terms)
    return fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.mul(x, weight), y))


@pytest.mark.parametrize("mode", ["sync", "half_async", "async"])
def test_gradients_are_handed_over_apart_from_each_other_and_from_fetches(mode: str) -> None:
    def sgd() -> Any:
        return fluid.optimizer.SGD(0.1)

    feeds = [{name: feed[name] for name in ("x", "y")} for feed in feeds_of(1, 3)]
    fetches = ["term_0@GRAD", "term_1@GRAD"]

    def work(worker: ProgramWorker) -> list[Any]:
        found = []
        for feed in feeds:
            found.append(worker.run(feed, fetches))
            worker.fleet.settle()
        return [*found, worker.value("term_0"), worker.value("term_1")]

    with NativeServers(2) as servers:
        (on_servers,) = run_workers(servers, 1, work, sgd, STRATEGIES[mode], two_terms)
    network = Network.build(two_terms)
    with fluid.program_guard(network.main, network.startup):
        sgd().minimize(network.loss)
    scope, exe = fluid.Scope(), fluid.Executor()
    exe.run(network.startup, scope=scope)
    alone: list[Any] = [exe.run(network.main, feed, fetches, scope=scope) for feed in feeds]
    alone += [np.array(scope.find_var(f"term_{number}").get_tensor()) for number in range(2)]
    for one, other in zip(on_servers, alone, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_what_cannot_be_saved_is_refused(tmp_path: Path) -> None:
    deltas = CheckpointConfig(directory=tmp_path, deltas_between_fulls=1)
    full = CheckpointConfig(directory=tmp_path)

    def work(worker: ProgramWorker) -> None:
        test = worker.network.main.clone(for_test=True)
        data, train = Feeds(feeds_of(1, 2)), worker.executor.train_from_dataset
        with pytest.raises(ConfigError, match="deltas_between_fulls is 1"):
            train(worker.network.main, data, worker.scope, checkpoints=deltas)
        with pytest.raises(ConfigError, match="nothing to save or resume"):
            train(test, data, worker.scope, checkpoints=full)

    with NativeServers(1) as servers:
        run_workers(servers, 1, work, lambda: fluid.optimizer.SGD(0.1))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_resumed_job_ends_with_the_same_bits(workers: int, tmp_path: Path) -> None:
    def layers() -> fluid.Variable:
        x = fluid.layers.data("x", [3])
        ids = fluid.layers.data("ids", [1], dtype="int64")
        y = fluid.layers.data("y", [1])
        rows = fluid.layers.embedding(ids, [50, 4], is_sparse=True)
        hidden = fluid.layers.fc(fluid.layers.concat([x, rows], axis=1), 5, act="tanh")
        hidden = fluid.layers.batch_norm(fluid.layers.dropout(hidden, 0.2, seed=9))
        return fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(hidden, 1), y))

    def rate() -> Any:
        decayed = fluid.layers.exponential_decay(0.05, decay_steps=5, decay_rate=0.8)
        return fluid.optimizer.Adam(decayed)

    def job(folder: Path, stop_after: int | None) -> None:
        config = CheckpointConfig(directory=folder, every_steps=4, skip_while_writing=False)

        def work(worker: ProgramWorker) -> None:
            data = Feeds(feeds_of(worker.fleet.worker_index(), BATCHES), stop_after)
            for _ in range(2):
                worker.executor.train_from_dataset(
                    worker.network.main, data, worker.scope, checkpoints=config, resume="auto"
                )

        with NativeServers(2) as servers:
            run_workers(servers, workers, work, rate, STRATEGIES["sync"], layers)

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    job(whole, None)
    with pytest.raises((StoppedError, SparseFleetError)):  # either worker may stop first
        job(killed, BATCHES + 11)
    stopped = latest(str(killed))
    assert stopped is not None
    job(killed, None)
    ends = [latest(str(folder)) for folder in (whole, killed)]
    assert ends[1] is not None
    assert ends[1].path > stopped.path
    assert_same(*(contents(end.path) for end in ends if end is not None))
