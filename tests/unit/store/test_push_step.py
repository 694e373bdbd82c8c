"""All gradients of a step in one push, the dense ones in parts."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from sparsefleet.errors import NonFiniteError, ShapeError
from sparsefleet.optim import SGD
from sparsefleet.store import Constant, DenseSpec, LocalStore, TableSpec

KEYS = np.array([7, 9], np.uint64)
ONES = np.ones((2, 1), np.float32)


@pytest.fixture
def store() -> Iterator[LocalStore]:
    with LocalStore() as made:
        made.define(TableSpec(name="rows", dim=1, optimizer=SGD(lr=1.0), initializer=Constant(0.0)))
        made.define(DenseSpec(name="net", size=3, optimizer=SGD(lr=1.0), non_finite="raise"))
        yield made


def parts(*values: float) -> list[np.ndarray]:
    return [np.array(values[:1], np.float32), np.array(values[1:], np.float32)]


def test_rows_and_parts_are_applied_as_one_step(store: LocalStore) -> None:
    result = store.push_step({"rows": (KEYS, ONES)}, {"net": parts(1, 2, 3)})
    assert result.applied == 5
    assert store.step == 1
    np.testing.assert_array_equal(store.pull("rows", KEYS), -ONES)
    np.testing.assert_array_equal(store.pull_dense("net"), [-1, -2, -3])


def test_parts_alone_are_a_step(store: LocalStore) -> None:
    assert store.push_step({}, {"net": parts(1, 2, 3)}).applied == 3


@pytest.mark.parametrize(
    ("wrong", "error"), [(parts(1, 2, np.nan), NonFiniteError), (parts(1, 2), ShapeError)]
)
def test_where_parts_are_refused_no_row_changes(
    store: LocalStore, wrong: list[np.ndarray], error: type[Exception]
) -> None:
    with pytest.raises(error, match="net"):
        store.push_step({"rows": (KEYS, ONES)}, {"net": wrong})
    assert not store.contains("rows", KEYS).any()
    np.testing.assert_array_equal(store.pull_dense("net"), 0)
