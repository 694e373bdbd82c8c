"""Rows that come back with the gradients of the previous step equal those of a pull."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.saved_training import (
    DropoutClicks,
    assert_same,
    click_batches,
    contents,
    make_trainer,
)
from tests.support.servers import NativeServers
from torch import nn

from sparsefleet.engine.distributed_model import DistributedModel
from sparsefleet.errors import ShapeError
from sparsefleet.fleet.role_info import RoleInfo
from sparsefleet.nn import SparseEmbedding
from sparsefleet.nn.pulled_rows import PulledRows
from sparsefleet.optim import SGD, Adagrad
from sparsefleet.store import Constant, DenseSpec, LocalStore, RoundMember, Store, TableSpec
from sparsefleet.train import TrainerConfig

pytestmark = pytest.mark.usefixtures("job_key")

DEADLINE_S = 90.0


def pulls(servers: NativeServers) -> float:
    with servers.connect() as store:
        return sum(each.get("server.requests.pull", 0) for each in store.stats())


def plain_clicks() -> DropoutClicks:
    """Without dropout: workers that are threads of one process would share a generator."""
    torch.manual_seed(0)
    model = DropoutClicks()
    model.dropout = nn.Identity()
    return model


def train(
    out: Path,
    data: list[Any],
    prefetch: bool | None,
    examples: list[int] | None = None,
    *,
    skip: bool = False,
    **options: Any,
) -> float:
    """Train one worker per entry of ``data``; save, and return how many pulls the servers had.

    ``examples`` gets the number of examples each worker has trained on.
    """
    options.setdefault("mode", "sync")
    config = TrainerConfig(
        quiet=True, prefetch=prefetch, non_finite_loss="skip" if skip else "raise"
    )

    # Made before the threads start, which share torch's generator.
    models = [plain_clicks() if len(data) > 1 else None for _ in data]

    def work(endpoints: list[str], index: int) -> None:
        trainer = make_trainer(
            endpoints, index, len(data), model=models[index], config=config, **options
        )
        with trainer:
            trained = trainer.fit(data[index], epochs=2).examples
            trainer.save(out)
        if examples is not None:
            examples.append(trained)

    with NativeServers(2) as servers, ThreadPoolExecutor(len(data)) as pool:
        running = [pool.submit(work, servers.endpoints, index) for index in range(len(data))]
        for future in running:
            future.result(DEADLINE_S)
        return pulls(servers)


class DrawingData:
    """Draws its examples from torch's generator, as dropout does, between the steps."""

    def __iter__(self) -> Any:
        for _ in range(9):
            ids = torch.randint(0, 50, (8, 3))
            yield ids, (ids[:, 0] % 2).float()


def test_sync_ends_with_the_same_bits_and_without_pulls(tmp_path: Path) -> None:
    ahead = train(tmp_path / "ahead", [DrawingData()], None)
    apart = train(tmp_path / "apart", [DrawingData()], False)
    assert_same(contents(tmp_path / "ahead"), contents(tmp_path / "apart"))
    # Only the batches at the start of a pass are pulled, and one before there is a plan, of 18.
    assert apart - ahead >= 2 * 14


class TaughtData:
    """Looks up rows in a private table with the same name as a trained one."""

    def __init__(self) -> None:
        self.seen: list[float] = []
        self._teacher = SparseEmbedding("ads", 4, initializer=Constant(7.0), unknown="initial")
        self._teacher.eval()

    def __iter__(self) -> Any:
        for ids, labels in click_batches(4):
            self.seen.append(self._teacher(ids).mean().item())
            yield ids, labels


def test_what_the_data_looks_up_is_not_of_the_step_that_reads_it(tmp_path: Path) -> None:
    data = TaughtData()
    train(tmp_path / "out", [data], None)
    assert data.seen == [7.0] * 8


def test_two_workers_with_uneven_data_end_with_the_same_bits(tmp_path: Path) -> None:
    data = [click_batches(9, seed=1), click_batches(5, seed=2)]
    train(tmp_path / "ahead", data, None)
    train(tmp_path / "apart", data, False)
    assert_same(contents(tmp_path / "ahead"), contents(tmp_path / "apart"))


def test_a_skipped_batch_leaves_the_next_one_to_pull(tmp_path: Path) -> None:
    batches = click_batches(8)
    batches[3] = (batches[3][0], torch.full_like(batches[3][1], torch.nan))
    train(tmp_path / "ahead", [batches], None, skip=True)
    train(tmp_path / "apart", [batches], False, skip=True)
    assert_same(contents(tmp_path / "ahead"), contents(tmp_path / "apart"))


def test_rows_that_a_skipped_step_did_not_bring_are_pulled() -> None:
    model = SparseEmbedding("ads", 2, initializer=Constant(3.0))
    role = RoleInfo(kind="local")
    distributed = DistributedModel(model, SGD(lr=0.1), "sync", role=role)
    distributed.start()
    first, second, third = (torch.tensor([2 * n, 2 * n + 1]) for n in range(3))
    with distributed.step(batch=first) as step:
        step.backward(model(first).sum())
    ahead = distributed.plan_ahead(third)
    assert ahead is not None

    class Ahead:
        def read_ahead(self) -> PulledRows | None:
            return ahead

    with distributed.step(batch=second, ahead=Ahead()) as step:
        step.backward(model(second).sum())
        step.skip()
    with distributed.step(batch=third, pulled=ahead) as step:
        rows = model(third)
        step.backward(rows.sum())
    assert rows.tolist() == [[3.0, 3.0]] * 2
    distributed.close()


def test_threads_train_on_every_batch_and_ask_for_no_rows_of_their_own(tmp_path: Path) -> None:
    examples: list[int] = []
    asked = train(
        tmp_path / "out", [click_batches(20)], None, examples, mode="half_async", threads=2
    )
    assert asked < 2 * 20
    assert examples == [2 * sum(len(labels) for _, labels in click_batches(20))]


@pytest.mark.parametrize("in_round", [False, True])
@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_push_brings_the_rows_that_a_pull_after_it_would(count: int, in_round: bool) -> None:
    rng = np.random.default_rng(3)
    keys = rng.integers(0, 60, 40).astype(np.uint64)
    gradients = rng.normal(size=(40, 3)).astype(np.float32)
    wanted = rng.integers(0, 90, 33).astype(np.uint64)

    def define(store: Store) -> None:
        store.define(TableSpec(name="ads", dim=3, optimizer=Adagrad(lr=0.1)))
        store.define(DenseSpec(name="net", size=5, optimizer=Adagrad(lr=0.1)))

    def push(store: Store, **more: Any) -> None:
        dense = {"net": np.ones(5, np.float32)}
        if in_round:
            member = RoundMember(rank=0, size=1)
            store.push_round(member, 1, {"ads": (keys, gradients)}, dense, **more)
        else:
            store.push_many({"ads": (keys, gradients)}, dense, **more)

    with LocalStore() as apart:
        define(apart)
        push(apart)
        expected = apart.pull("ads", wanted)
        servers = NativeServers(count) if count else None
        with LocalStore() if servers is None else servers.connect() as store:
            define(store)
            rows, values = np.empty((33, 3), np.float32), np.empty(5, np.float32)
            push(store, rows={"ads": (wanted, rows)}, values={"net": values})
            np.testing.assert_array_equal(rows, expected)
            np.testing.assert_array_equal(values, store.pull_dense("net"))
            assert store.info("ads").size == apart.info("ads").size
            push_none = store.push_many({}, rows={"ads": (wanted[:0], rows[:0])})
            assert push_none.applied == 0
            with pytest.raises(ShapeError, match="table 'ads': out must be float32 of shape"):
                store.push_many({}, rows={"ads": (wanted, rows[:5])})
        if servers is not None:
            servers.stop()
