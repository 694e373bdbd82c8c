"""Dense gradients in parts are checked and applied like contiguous ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from sparsefleet.errors import NonFiniteError, ShapeError
from sparsefleet.optim import SGD
from sparsefleet.store import Constant, DenseSpec, LocalStore, TableSpec

KEYS = np.array([7, 9], np.uint64)
ONES = np.ones((2, 1), np.float32)


def parts(*values: float) -> list[np.ndarray]:
    return [np.array(values[:1], np.float32), np.array(values[1:], np.float32)]


@pytest.fixture
def store() -> Iterator[LocalStore]:
    with LocalStore() as made:
        made.define(TableSpec(name="rows", dim=1, optimizer=SGD(lr=1.0), initializer=Constant(0.0)))
        made.define(DenseSpec(name="net", size=2, optimizer=SGD(lr=1.0), non_finite="raise"))
        yield made


@pytest.mark.parametrize(
    "gradient",
    [
        [np.ones(1, np.float32), np.ones(1, np.float32)],
        [np.ones(2, np.float32)],
        [np.float32(1), np.float32(1)],
    ],
)
def test_parts_and_lists_of_numbers_are_taken(store: LocalStore, gradient: Any) -> None:
    assert store.push_many({}, {"net": gradient}).applied == 2
    np.testing.assert_array_equal(store.pull_dense("net"), [-1, -1])


@pytest.mark.parametrize(
    ("gradient", "message"),
    [
        ([np.ones(1), np.ones(1)], "a part of the gradient must be float32, got float64"),
        ([np.ones(2, np.int64)], "a part of the gradient must be float32, got int64"),
        ([1.0, 2.0], "gradient must be float32, got float64"),
        ([np.ones(2, np.float32)] * 2, r"shape \(2,\), got parts with 4 elements"),
        ([], "gradient must be float32"),
    ],
)
def test_what_does_not_fit_is_named_and_changes_nothing(
    store: LocalStore, gradient: Any, message: str
) -> None:
    with pytest.raises(ShapeError, match=f"table 'net': .*{message}"):
        store.push_many({}, {"net": gradient})
    np.testing.assert_array_equal(store.pull_dense("net"), [0, 0])


def test_rows_and_parts_are_applied_as_one_step(store: LocalStore) -> None:
    result = store.push_many({"rows": (KEYS, ONES)}, {"net": parts(1, 2)}, unique=True)
    assert result.applied == 4
    assert store.step == 1
    np.testing.assert_array_equal(store.pull("rows", KEYS), -ONES)
    np.testing.assert_array_equal(store.pull_dense("net"), [-1, -2])


@pytest.mark.parametrize(
    ("wrong", "error"), [(parts(1, np.nan), NonFiniteError), (parts(1, 2, 3), ShapeError)]
)
def test_where_parts_are_refused_no_row_changes(
    store: LocalStore, wrong: list[np.ndarray], error: type[Exception]
) -> None:
    with pytest.raises(error, match="net"):
        store.push_many({"rows": (KEYS, ONES)}, {"net": wrong})
    assert not store.contains("rows", KEYS).any()
    np.testing.assert_array_equal(store.pull_dense("net"), 0)
