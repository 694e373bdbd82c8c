"""Several mini-batches become one push."""

from __future__ import annotations

import numpy as np
import pytest

from sparsefleet.errors import ShapeError
from sparsefleet.modes import StepGradients
from sparsefleet.modes.merge_gradients import merge_gradients
from sparsefleet.optim import SGD
from sparsefleet.store import Constant, LocalStore, TableSpec


def copy(keys: list[int], rows: list[float], dense: list[float]) -> StepGradients:
    values = np.array(rows, np.float32).reshape(-1, 1)
    return StepGradients(
        {"rows": (np.array(keys, np.uint64), values)}, {"net": np.array(dense, np.float32)}
    )


def applied(merged: StepGradients) -> dict[int, float]:
    """The sum by key as a store with lr -1 sees it."""
    with LocalStore() as store:
        spec = TableSpec(name="rows", dim=1, optimizer=SGD(lr=1.0), initializer=Constant(0.0))
        store.define(spec)
        keys, rows = merged.sparse["rows"]
        store.push("rows", keys, -rows)
        return {int(key): float(store.pull("rows", np.array([key]))[0, 0]) for key in set(keys)}


def test_mean_divides_every_row_by_the_copies_not_by_its_occurrences() -> None:
    merged = merge_gradients([copy([1, 7], [1.0, 2.0], [1, 2]), copy([7], [4.0], [3, 6])])
    assert applied(merged) == {1: 0.5, 7: 3.0}
    np.testing.assert_array_equal(merged.dense["net"], [2, 4])


def test_sum_adds_and_may_differ_by_table() -> None:
    copies = [copy([1, 7], [1.0, 2.0], [1, 2]), copy([7], [4.0], [3, 6])]
    merged = merge_gradients(copies, summed={"rows"})
    assert applied(merged) == {1: 1.0, 7: 6.0}
    np.testing.assert_array_equal(merged.dense["net"], [2, 4])


def test_one_copy_is_itself() -> None:
    only = copy([1], [1.0], [1])
    assert merge_gradients([only]) is only


def test_tables_that_some_copies_lack_count_as_zero_there() -> None:
    merged = merge_gradients([copy([1], [1.0], [4]), StepGradients()])
    assert applied(merged) == {1: 0.5}
    np.testing.assert_array_equal(merged.dense["net"], [2])


def test_arrays_that_cannot_be_written_are_left_alone() -> None:
    copies = [copy([1], [1.0], [4]), copy([1], [1.0], [2])]
    for gradients in copies:
        gradients.dense["net"].flags.writeable = False
    assert merge_gradients(copies).dense["net"] == [3]
    assert copies[0].dense["net"] == [4]


def test_dense_gradients_of_different_shapes_are_an_error() -> None:
    with pytest.raises(ShapeError, match="'net'.*one shape"):
        merge_gradients([copy([1], [1.0], [1, 2]), copy([1], [1.0], [1])])


def parts(*values: list[float]) -> StepGradients:
    return StepGradients(dense_parts={"net": [np.array(value, np.float32) for value in values]})


def test_gradients_in_parts_become_whole_and_the_parts_stay() -> None:
    copies = [parts([1, 2], [3]), parts([3, 4], [5])]
    merged = merge_gradients(copies)
    np.testing.assert_array_equal(merged.dense["net"], [2, 3, 4])
    assert not merged.dense_parts
    np.testing.assert_array_equal(copies[0].dense_parts["net"][0], [1, 2])


def test_one_copy_in_parts_stays_in_parts() -> None:
    only = parts([1, 2], [], [3])
    assert merge_gradients([only]) is only
    assert [part.size for part in only.all_dense()["net"]] == [2, 0, 1]


def test_gradients_in_parts_of_different_sizes_are_an_error() -> None:
    with pytest.raises(ShapeError, match="'net'.*one shape"):
        merge_gradients([parts([1, 2], [3]), parts([1, 2])])
