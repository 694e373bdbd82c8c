from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.support.servers import NativeServers
from torch import nn

from sparsefleet import optim
from sparsefleet.errors import ConfigError, TableConflictError
from sparsefleet.nn import SparseEmbedding, SparseEmbeddingBag, apply_gradients, bind
from sparsefleet.nn.binding import sparse_modules
from sparsefleet.store import Constant, LocalStore, Rows, Store


def rows_of(store: Store, table: str) -> dict[int, tuple[list[float], list[float]]]:
    """key -> (values, state)"""
    found = {}
    for chunk in store.rows(table):
        for key, values, state in zip(chunk.keys, chunk.values, chunk.state, strict=True):
            found[int(key)] = (values.tolist(), state.tolist())
    return found


def train_once(module: nn.Module, *ids: int) -> None:
    module(torch.tensor([ids])).sum().backward()
    apply_gradients(module)


def test_sparse_modules_are_found_in_order_each_once() -> None:
    shared = SparseEmbedding("a", 2)
    bag = SparseEmbeddingBag("b", 2)
    model = nn.ModuleList([nn.Linear(2, 2), shared, nn.Sequential(bag), shared])
    assert sparse_modules(model) == [shared, bag]


def test_tables_are_defined_with_the_default_optimizer_or_their_own() -> None:
    store = LocalStore()
    model = nn.ModuleList(
        [
            SparseEmbedding("a", 2),
            SparseEmbedding("b", 3, optimizer=optim.Adam()),
            SparseEmbeddingBag("b", 3),  # uses the settings of the table's other module
        ]
    )
    specs = bind(model, store, optim.SGD(lr=1.0))
    assert {name: spec.optimizer for name, spec in specs.items()} == {
        "a": optim.SGD(lr=1.0),
        "b": optim.Adam(),
    }
    assert store.info("b").dim == 3
    assert all(module.store is store for module in sparse_modules(model))
    assert bind(model, store, optim.SGD(lr=1.0)) == specs


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({}, {"seed": 3}, "seed is 0 and 3"),
        ({"initializer": Constant(1.0)}, {}, "initializer is Constant"),
        ({"optimizer": optim.SGD()}, {"optimizer": optim.Adam()}, "optimizer is SGD"),
        ({}, {"unknown": "initial"}, "`unknown`: 'zeros' and 'initial'"),
    ],
)
def test_modules_that_describe_a_table_differently_are_both_named(
    first: dict, second: dict, message: str
) -> None:
    model = nn.ModuleDict(
        {"left": SparseEmbedding("a", 2, **first), "right": SparseEmbedding("a", 2, **second)}
    )
    store = LocalStore()
    with pytest.raises(ConfigError, match="modules 'left' and 'right' share table 'a'") as caught:
        bind(model, store)
    assert message in str(caught.value)
    assert sparse_modules(model)[0].store is None


def test_store_that_has_the_table_otherwise_is_named_by_the_store() -> None:
    store = LocalStore()
    bind(SparseEmbedding("a", 2), store)
    with pytest.raises(TableConflictError, match="'a'"):
        bind(SparseEmbedding("a", 2), store, optim.Adam())


@pytest.mark.parametrize("remote", [False, True])
def test_rows_trained_before_move_along_with_their_state(remote: bool) -> None:
    module = SparseEmbedding("a", 2)
    train_once(module, 1, 2)
    before = rows_of(module.store, "a")
    assert before[1][1] != [0.0, 0.0]
    with NativeServers(2) as servers, servers.connect() if remote else LocalStore() as store:
        bind(module, store)
        assert rows_of(store, "a") == before
        train_once(module, 1)
        assert rows_of(store, "a")[1] != before[1]


def test_state_of_another_optimizer_starts_over() -> None:
    module = SparseEmbedding("a", 2)
    train_once(module, 1)
    values = rows_of(module.store, "a")[1][0]
    store = LocalStore()
    bind(module, store, optim.Adam())
    assert rows_of(store, "a")[1] == (values, [0.0] * 5)


def test_modules_with_rows_of_their_own_for_one_table_are_not_mixed() -> None:
    model = nn.ModuleDict({"left": SparseEmbedding("a", 2), "right": SparseEmbedding("a", 2)})
    for module in model.values():
        train_once(module, 1)
    with pytest.raises(
        ConfigError, match="'left' and 'right' share table 'a' but each already has its own rows"
    ):
        bind(model, LocalStore())


def test_modules_of_one_given_store_move_together() -> None:
    given, store = LocalStore(), LocalStore()
    model = nn.ModuleList([SparseEmbedding("a", 2, store=given) for _ in range(2)])
    for module in model:
        train_once(module, 1)
    before = rows_of(given, "a")
    bind(model, store)
    assert rows_of(store, "a") == before


def test_gradients_left_before_binding_reach_the_new_store() -> None:
    module = SparseEmbedding("a", 1, initializer=Constant(1.0), optimizer=optim.SGD(lr=0.5))
    module(torch.tensor([4])).sum().backward()
    store = LocalStore()
    bind(module, store)
    apply_gradients(module)
    assert rows_of(store, "a") == {4: ([0.5], [])}


def test_training_on_servers_in_a_plain_loop() -> None:
    module = SparseEmbedding("a", 1, initializer=Constant(1.0), optimizer=optim.SGD(lr=0.5))
    with NativeServers(2) as servers, servers.connect() as store:
        bind(module, store)
        train_once(module, 1, 2, 2)
        assert rows_of(store, "a") == {1: ([0.5], []), 2: ([0.0], [])}
        store.import_rows("a", Rows(np.array([9]), np.ones((1, 1), np.float32),
                                    np.empty((1, 0)), np.empty((1, 0))))  # fmt: skip
        assert module.eval()(torch.tensor([9, 10])).tolist() == [[1.0], [0.0]]
