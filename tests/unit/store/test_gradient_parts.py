"""Dense gradients that come in parts are checked as whole ones are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from sparsefleet.errors import ShapeError
from sparsefleet.optim import SGD
from sparsefleet.store import DenseSpec, LocalStore

Push = Callable[[LocalStore, Any], Any]
PUSHES: list[Push] = [
    lambda store, gradient: store.push_many({}, {"net": gradient}),
    lambda store, gradient: store.push_step({}, {"net": gradient}),
]


@pytest.fixture
def store() -> Iterator[LocalStore]:
    with LocalStore() as made:
        made.define(DenseSpec(name="net", size=2, optimizer=SGD(lr=1.0)))
        yield made


@pytest.mark.parametrize("push", PUSHES)
@pytest.mark.parametrize(
    "gradient",
    [
        [np.ones(1, np.float32), np.ones(1, np.float32)],
        [np.ones(2, np.float32)],
        [np.float32(1), np.float32(1)],
    ],
)
def test_parts_and_lists_of_numbers_are_taken(store: LocalStore, push: Push, gradient: Any) -> None:
    assert push(store, gradient).applied == 2
    np.testing.assert_array_equal(store.pull_dense("net"), [-1, -1])


@pytest.mark.parametrize("push", PUSHES)
@pytest.mark.parametrize(
    ("gradient", "message"),
    [
        ([np.ones(1), np.ones(1)], "a part of the gradient must be float32, got float64"),
        ([np.ones(2, np.int64)], "a part of the gradient must be float32, got int64"),
        ([1.0, 2.0], "gradient must be float32, got float64"),
        ([np.ones(2, np.float32)] * 2, r"shape \(2,\), got 4 in parts"),
        ([], "gradient must be float32"),
    ],
)
def test_what_does_not_fit_is_named_and_changes_nothing(
    store: LocalStore, push: Push, gradient: Any, message: str
) -> None:
    with pytest.raises(ShapeError, match=f"table 'net': .*{message}"):
        push(store, gradient)
    np.testing.assert_array_equal(store.pull_dense("net"), [0, 0])
