"""Several mini-batches become one push."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from sparsefleet.errors import ShapeError
from sparsefleet.optim import SGD
from sparsefleet.store import Constant, DenseSpec, LocalStore, RoundMember, TableSpec
from sparsefleet.store.store import Gradients

KEYS = np.array([1, 7], np.uint64)


@pytest.fixture
def store() -> Iterator[LocalStore]:
    with LocalStore() as made:
        made.define(TableSpec(name="rows", dim=1, optimizer=SGD(lr=1.0), initializer=Constant(0.0)))
        made.define(DenseSpec(name="net", size=3, optimizer=SGD(lr=1.0)))
        yield made


def batch(keys: list[int], rows: list[float], dense: object = None) -> Gradients:
    values = np.array(rows, np.float32).reshape(-1, 1)
    sparse = {"rows": (np.array(keys, np.uint64), values)} if keys else {}
    return sparse, {} if dense is None else {"net": dense}


def net(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def test_every_row_is_divided_by_the_batches_not_by_its_occurrences(store: LocalStore) -> None:
    store.push_mean([batch([1, 7], [1.0, 2.0], net(1, 2, 3)), batch([7], [4.0], net(3, 6, 9))])
    np.testing.assert_array_equal(store.pull("rows", KEYS), [[-0.5], [-3.0]])
    np.testing.assert_array_equal(store.pull_dense("net"), [-2, -4, -6])


def test_tables_that_some_batches_lack_count_as_zero_there(store: LocalStore) -> None:
    store.push_mean([batch([1], [1.0], net(4, 4, 4)), ({}, {})])
    np.testing.assert_array_equal(store.pull("rows", KEYS), [[-0.5], [0.0]])
    np.testing.assert_array_equal(store.pull_dense("net"), [-2, -2, -2])


def test_gradients_in_parts_and_whole_ones_are_merged_and_stay_as_they_are(
    store: LocalStore,
) -> None:
    parts = [net(1, 2), net(), net(3)]
    whole = net(3, 4, 5)
    whole.flags.writeable = False
    store.push_mean([batch([], [], parts), batch([], [], whole)])
    np.testing.assert_array_equal(store.pull_dense("net"), [-2, -3, -4])
    np.testing.assert_array_equal(parts[0], [1, 2])


def test_values_and_rows_come_back_with_the_push(store: LocalStore) -> None:
    values, rows = np.empty(3, np.float32), np.empty((2, 1), np.float32)
    batches = [batch([1], [2.0]), batch([7], [4.0], net(2, 4, 6))]
    store.push_mean(batches, values={"net": values}, rows={"rows": (KEYS, rows)})
    np.testing.assert_array_equal(values, [-1, -2, -3])
    np.testing.assert_array_equal(rows, [[-1.0], [-2.0]])


def test_a_round_takes_the_mean_of_a_members_batches(store: LocalStore) -> None:
    values = np.empty(3, np.float32)
    store.push_round_mean(
        RoundMember(rank=0, size=1),
        1,
        [batch([1, 7], [1.0, 2.0], net(1, 2, 3)), batch([7], [4.0], net(3, 6, 9))],
        values={"net": values},
    )
    np.testing.assert_array_equal(store.pull("rows", KEYS), [[-0.5], [-3.0]])
    np.testing.assert_array_equal(values, [-2, -4, -6])


def test_gradients_of_the_wrong_size_are_an_error_that_names_the_table(store: LocalStore) -> None:
    with pytest.raises(ShapeError, match="'net'.*shape"):
        store.push_mean([batch([], [], net(1, 2, 3)), batch([], [], net(1, 2))])
    with pytest.raises(ShapeError, match="'rows'.*shape"):
        store.push_mean([({"rows": (KEYS, np.ones((2, 2), np.float32))}, {})])
