"""A linear model trained in each mode, against one process on the same examples."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
import pytest
from tests.support.servers import NativeServers

from sparsefleet import optim
from sparsefleet.modes import AsyncConfig, GeoConfig
from sparsefleet.modes.mode import Mode
from sparsefleet.modes.mode_choice import ModeConfig, make_mode
from sparsefleet.modes.mode_setting import ModeSetting, StepGradients
from sparsefleet.optim import Optimizer
from sparsefleet.store import DenseSpec, LocalStore, Normal, Store, TableSpec

DIM = 4
FEATURES = 6
SLOTS = 3
BATCH = 8
STEPS = 12
SUM_OF_DIM = np.linspace(0.5, 1.5, DIM).astype(np.float32)


@dataclass
class Batch:
    ids: np.ndarray
    features: np.ndarray
    labels: np.ndarray


def make_batches(count: int) -> list[Batch]:
    rng = np.random.default_rng(3)
    return [
        Batch(
            rng.integers(0, 40, (BATCH, SLOTS)),
            rng.normal(size=(BATCH, FEATURES)).astype(np.float32),
            rng.normal(size=BATCH).astype(np.float32),
        )
        for _ in range(count)
    ]


def joined(batches: list[Batch]) -> Batch:
    return Batch(
        *(np.concatenate([getattr(b, name) for b in batches]) for name in vars(batches[0]))
    )


class Learner:
    """Squared error of features @ net + the weighted rows of all slots."""

    def __init__(self, mode: str | ModeConfig, store: Store, optimizer: Optimizer, **setting: int):
        spec = TableSpec(name="rows", dim=DIM, optimizer=optimizer, initializer=Normal(0.0, 0.3))
        store.define(spec)
        store.define(DenseSpec(name="net", size=FEATURES, optimizer=optimizer, min_block_size=2))
        self.net = np.zeros(FEATURES, np.float32)
        self.mode = make_mode(
            mode,
            ModeSetting(
                store=store,
                tables={"rows": spec},
                dense={"net": self.net},
                dense_optimizers={"net": optimizer},
                wait_s=30.0,
                **setting,  # type: ignore[arg-type]
            ),
        )
        self.mode.start()

    def step(self, batch: Batch) -> None:
        keys, inverse = np.unique(batch.ids, return_inverse=True)
        keys, inverse = keys.astype(np.uint64), inverse.reshape(batch.ids.shape)
        rows = self.mode.pull({"rows": keys})["rows"]
        error = batch.features @ self.net + (rows @ SUM_OF_DIM)[inverse].sum(axis=1) - batch.labels
        error *= np.float32(2 / len(batch.labels))
        of_key = np.zeros(len(keys), np.float32)
        np.add.at(of_key, inverse, np.repeat(error[:, None], SLOTS, axis=1))
        self.mode.hand_over(
            StepGradients(
                {"rows": (keys, of_key[:, None] * SUM_OF_DIM)},
                {"net": batch.features.T @ error},
            )
        )


def trained(store: Store) -> np.ndarray:
    """Return everything that was learned, as one array."""
    rows = store.pull("rows", np.arange(40), train=False, unknown="initial")
    return np.concatenate([rows.reshape(-1), store.pull_dense("net")])


def trained_locally(batches: list[Batch], optimizer: Optimizer) -> np.ndarray:
    with LocalStore() as store:
        learner = Learner("local", store, optimizer)
        for batch in batches:
            learner.step(batch)
        return trained(store)


def run_threads(scripts: list[tuple[Learner, list[Batch]]]) -> None:
    errors: list[BaseException] = []

    def play(learner: Learner, batches: list[Batch]) -> None:
        try:
            for batch in batches:
                learner.step(batch)
            learner.mode.leave()
        except BaseException as error:
            errors.append(error)
            learner.mode.fail(error)

    threads = [threading.Thread(target=play, args=script, daemon=True) for script in scripts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not errors


OPTIMIZERS = [optim.SGD(lr=0.05), optim.Adagrad(lr=0.1), optim.Adam(lr=0.02)]


@pytest.mark.parametrize("servers", [1, 2, 3])
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: optimizer.kind)
def test_sync_equals_one_process_on_the_joined_batch(
    workers: int, servers: int, optimizer: Optimizer
) -> None:
    batches = make_batches(STEPS * workers)
    steps = [joined(batches[i : i + workers]) for i in range(0, len(batches), workers)]
    with NativeServers(servers, transport="plain") as fleet:
        stores = [fleet.connect(name=f"worker-{rank}") for rank in range(workers)]
        learners = [
            Learner("sync", store, optimizer, worker_index=rank, worker_num=workers)
            for rank, store in enumerate(stores)
        ]
        run_threads([(learner, batches[rank::workers]) for rank, learner in enumerate(learners)])
        found = trained(stores[0])
        for learner, store in zip(learners, stores, strict=True):
            learner.mode.finish()
            np.testing.assert_array_equal(learner.net, found[-FEATURES:])
            store.close()
    np.testing.assert_allclose(found, trained_locally(steps, optimizer), atol=1e-5)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: optimizer.kind)
def test_half_async_with_one_worker_equals_local_with_merged_threads(
    threads: int, optimizer: Optimizer
) -> None:
    batches = make_batches(STEPS * threads)
    steps = [joined(batches[i : i + threads]) for i in range(0, len(batches), threads)]
    with NativeServers(2, transport="plain") as fleet, fleet.connect() as store:
        learner = Learner("half_async", store, optimizer, threads=threads)
        run_threads([(learner, batches[thread::threads]) for thread in range(threads)])
        learner.mode.finish()
        found = trained(store)
    np.testing.assert_allclose(found, trained_locally(steps, optimizer), atol=1e-5)


@pytest.mark.parametrize("interval", [1, 5, 100])
def test_geo_with_one_worker_equals_local_sgd(interval: int) -> None:
    batches = make_batches(40)
    optimizer = optim.SGD(lr=0.05)
    with NativeServers(2, transport="plain") as fleet, fleet.connect() as store:
        learner = Learner(GeoConfig(push_interval_steps=interval), store, optimizer)
        run_threads([(learner, batches)])
        learner.mode.finish()
        found = trained(store)
        np.testing.assert_array_equal(learner.net, found[-FEATURES:])
    np.testing.assert_allclose(found, trained_locally(batches, optimizer), atol=1e-5)


def flushed(mode: Mode) -> Mode:
    """Return the mode with a flush after every step, so that only its arithmetic differs."""
    hand_over = mode.hand_over

    def hand_over_and_flush(gradients: StepGradients) -> None:
        hand_over(gradients)
        mode.flush()

    mode.hand_over = hand_over_and_flush  # type: ignore[method-assign]
    return mode


@pytest.mark.parametrize("mode", ["async", AsyncConfig(max_staleness=0), "hybrid"], ids=str)
def test_one_worker_without_staleness_equals_local(mode: str) -> None:
    batches = make_batches(STEPS)
    optimizer = optim.Adam(lr=0.02)
    with NativeServers(2, transport="plain") as fleet, fleet.connect() as store:
        learner = Learner(mode, store, optimizer)
        flushed(learner.mode)
        run_threads([(learner, batches)])
        learner.mode.finish()
        found = trained(store)
    np.testing.assert_allclose(found, trained_locally(batches, optimizer), atol=1e-6)
