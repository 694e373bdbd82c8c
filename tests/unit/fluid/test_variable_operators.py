"""Python's operators on variables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparsefleet import fluid
from sparsefleet.fluid.framework import ProgramError

X = np.arange(24, dtype="float32").reshape(2, 3, 4)


def run(out: Any, **feed: Any) -> Any:
    return fluid.Executor().run(feed=feed, fetch_list=[out])[0]


@pytest.mark.parametrize(
    "item",
    [
        np.s_[0],
        np.s_[-1],
        np.s_[:, 1],
        np.s_[:, 1:],
        np.s_[:, :-1, 0:2],
        np.s_[:, -2, 3],
        np.s_[:, :, ::2],
        np.s_[:, ::-1],
        np.s_[:, 2:0:-1],
        np.s_[1, 2, 3:],
    ],
    ids=str,
)
def test_items_are_those_of_numpy(item: Any) -> None:
    x = fluid.data("x", [None, 3, 4])
    assert run(x[item], x=X).tolist() == X[item].tolist()


def test_an_item_of_all_places_keeps_one_size() -> None:
    x = fluid.data("x", [None, 3, 4])
    assert run(x[1, 2, 3], x=X).tolist() == [23.0]


def test_places_can_be_variables() -> None:
    x, at = fluid.data("x", [None, 3, 4]), fluid.data("at", [1], "int32")
    assert (run(x[:, at], x=X, at=np.array([2], "int32")) == X[:, 2]).all()
    part = x[:, 0:at]
    assert part.shape == (-1, -1, 4)
    assert (run(part, x=X, at=np.array([2], "int32")) == X[:, :2]).all()


def test_a_variable_cannot_be_iterated() -> None:
    x = fluid.data("x", [None, 3])
    with pytest.raises(TypeError, match="cannot be iterated"):
        list(x)
    with pytest.raises(ProgramError, match="too many indices"):
        x[0, 0, 0]
    with pytest.raises(ProgramError, match="an index must be"):
        x["a"]


def test_equality_is_an_operator_and_identity_is_not() -> None:
    x, y = fluid.data("x", [None, 3]), fluid.data("y", [None, 3])
    same = x == y
    assert same.dtype == "bool"
    ones = np.ones((1, 3), "float32")
    twos = np.array([[1, 2, 1]], "float32")
    assert run(same, x=ones, y=twos).tolist() == [[True, False, True]]
    assert run(x != 1, x=twos).tolist() == [[False, True, False]]
    assert x != "x"
    assert x is not None
    assert len({x, y}) == 2


def test_the_second_takes_the_type_of_the_first() -> None:
    x, y = fluid.data("x", [None, 2]), fluid.data("y", [None, 2], "int64")
    found = run(x * y, x=np.full((1, 2), 1.5, "float32"), y=np.array([[2, 4]]))
    assert found.tolist() == [[3.0, 6.0]]


def test_an_open_size_of_the_second_meets_the_first_one() -> None:
    x, y = fluid.data("x", [None, 2]), fluid.data("y", [None])
    found = run(x + y, x=np.zeros((2, 2), "float32"), y=np.array([1, 2], "float32"))
    assert found.tolist() == [[1.0, 1.0], [2.0, 2.0]]


def test_whole_numbers_stay_whole() -> None:
    x = fluid.data("x", [None], "int64")
    found = [run(out, x=np.array([7, -7])).tolist() for out in (x / 2, x // 2, x % 4, x * 2.0)]
    assert found == [[3, -3], [3, -3], [3, -3], [14, -14]]
    with pytest.raises(ProgramError, match="holds integers, got 0.5"):
        x * 0.5


def test_what_is_neither_a_variable_nor_a_number() -> None:
    with pytest.raises(TypeError, match="fluid.layers.assign"):
        fluid.data("x", [None, 3]) + (1, 2, 3)  # noqa: RUF005
