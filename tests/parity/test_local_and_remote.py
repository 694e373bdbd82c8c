"""The same random history through a LocalStore and through servers ends in identical rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.support.servers import NativeServers

from sparsefleet import optim
from sparsefleet.store import (
    AdmitByCount,
    AdmitByProbability,
    DenseSpec,
    Evict,
    LocalStore,
    Normal,
    RemoteStore,
    Rows,
    Store,
    TableSpec,
    TruncatedNormal,
    Uniform,
)

TABLES = [
    TableSpec(name="plain", dim=4, optimizer=optim.SGD(lr=0.1), initializer=Normal(0.0, 1.0)),
    TableSpec(
        name="counted",
        dim=3,
        optimizer=optim.Adam(lr=0.05),
        initializer=Uniform(-1.0, 1.0),
        admission=AdmitByCount(2),
        eviction=Evict(untouched_steps=12),
        track_count=True,
        seed=7,
    ),
    TableSpec(
        name="sampled",
        dim=10,
        optimizer=optim.Ftrl(lr=0.1, l1=0.01),
        initializer=TruncatedNormal(0.5, 0.1),
        admission=AdmitByProbability(0.4),
        eviction=Evict(min_count=2, min_norm=0.05),
        track_dirty=True,
        seed=2**63 + 1,
    ),
    TableSpec(name="halved", dim=5, optimizer=optim.RowwiseAdagrad(lr=0.1), row_dtype="bf16"),
    TableSpec(
        name="quartered",
        dim=7,
        optimizer=optim.SGD(lr=0.01),
        eviction=Evict(min_norm=0.01),
        track_dirty=True,
        row_dtype="int8",
    ),
]
DENSE = DenseSpec(name="dense", size=50_000, optimizer=optim.Adagrad(lr=0.1), min_block_size=9_000)


def random_keys(rng: np.random.Generator) -> np.ndarray:
    """Return a few distinct keys, often repeated, from the whole 64-bit range."""
    pool = np.concatenate([np.arange(60), -np.arange(1, 60), [2**63 - 1, -(2**63)]])
    return rng.choice(pool, rng.integers(0, 80)).astype(np.int64)


def play_history(store: Store, seed: int, steps: int) -> list[np.ndarray]:
    """Return all answers of the store, in order."""
    rng = np.random.default_rng(seed)
    answers: list[np.ndarray] = []
    for spec in TABLES:
        store.define(spec)
    store.define(DENSE)
    store.write_dense("dense", rng.normal(size=DENSE.size).astype(np.float32))
    for _ in range(steps):
        spec = TABLES[rng.integers(len(TABLES))]
        action = rng.random()
        if action < 0.35:
            train = bool(rng.random() < 0.7)
            unknown = "initial" if rng.random() < 0.5 else "zeros"
            answers.append(store.pull(spec.name, random_keys(rng), train=train, unknown=unknown))
        elif action < 0.75:
            keys = random_keys(rng)
            gradients = rng.normal(size=(len(keys), spec.dim)).astype(np.float32)
            if len(keys) and rng.random() < 0.2:
                gradients[rng.integers(len(keys)), 0] = rng.choice([np.nan, np.inf])
            answers.append(np.array(store.push(spec.name, keys, gradients)))
        elif action < 0.85:
            gradient = rng.normal(size=DENSE.size).astype(np.float32)
            keys = np.unique(random_keys(rng))
            rows = rng.normal(size=(len(keys), spec.dim)).astype(np.float32)
            result = store.push_many({spec.name: (keys, rows)}, {"dense": gradient}, unique=True)
            answers.append(np.array(result))
        elif action < 0.9:
            keys = random_keys(rng)
            rows, values = store.pull_many({spec.name: keys}, ["dense"])
            answers += [rows[spec.name], values["dense"]]
        elif action < 0.95:
            answers.append(np.array(store.shrink(spec.name)))
        else:
            answers.append(np.array(store.erase(spec.name, random_keys(rng))))
    return answers


def all_rows(store: Store, table: str) -> Rows:
    chunks = list(store.rows(table, chunk_rows=37))
    columns = [np.concatenate(column) for column in zip(*chunks, strict=True)]
    order = np.argsort(columns[0])
    return Rows(*(column[order] for column in columns))


@pytest.mark.parametrize("transport", ["auto", "tls", "plain"])
@pytest.mark.parametrize("num_servers", [1, 2, 3])
def test_same_history_gives_identical_answers_and_rows(num_servers: int, transport: str) -> None:
    with NativeServers(num_servers, transport=transport) as servers:
        with LocalStore() as local, servers.connect() as remote:
            for seed in range(3):
                here = play_history(local, seed, 120)
                there = play_history(remote, seed, 120)
                assert len(here) == len(there)
                for mine, theirs in zip(here, there, strict=True):
                    np.testing.assert_array_equal(mine, theirs)
            assert remote.info("dense").size == local.info("dense").size == DENSE.size
            for spec in TABLES:
                mine, theirs = all_rows(local, spec.name), all_rows(remote, spec.name)
                assert len(mine.keys) > 0
                for column, other in zip(mine, theirs, strict=True):
                    np.testing.assert_array_equal(column, other)
                assert sum(s[f"table.{spec.name}.rows"] for s in remote.stats()) == len(mine.keys)


def test_rows_saved_by_two_servers_load_into_three_and_into_this_process(tmp_path) -> None:
    with NativeServers(2) as two, two.connect() as store:
        play_history(store, 1, 150)
        store.save(tmp_path)
        wanted = {spec.name: all_rows(store, spec.name) for spec in TABLES}
        dense = store.pull_dense("dense")
    with NativeServers(3) as three, three.connect() as remote, LocalStore() as local:
        for store in (remote, local):
            for spec in (*TABLES, DENSE):
                store.define(spec)
            store.load(tmp_path)
            for name, rows in wanted.items():
                for column, other in zip(all_rows(store, name), rows, strict=True):
                    np.testing.assert_array_equal(column, other)
            np.testing.assert_array_equal(store.pull_dense("dense"), dense)


def test_initial_values_do_not_depend_on_order_batch_or_number_of_servers() -> None:
    spec = replace(TABLES[0], seed=99)
    keys = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 500)
    with LocalStore() as whole, LocalStore() as piecewise, NativeServers(3) as servers:
        with servers.connect() as remote:
            for store in (whole, piecewise, remote):
                store.define(spec)
            wanted = whole.pull("plain", keys)
            for key in keys[::-1]:
                piecewise.pull("plain", np.array([key]))
            np.testing.assert_array_equal(piecewise.pull("plain", keys), wanted)
            np.testing.assert_array_equal(remote.pull("plain", keys), wanted)
            never_trained = remote.pull("plain", keys + 1, train=False, unknown="initial")
            np.testing.assert_array_equal(never_trained, whole.pull("plain", keys + 1))


def test_remote_store_is_a_store() -> None:
    assert issubclass(RemoteStore, Store)
    assert issubclass(LocalStore, Store)
