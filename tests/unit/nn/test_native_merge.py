from __future__ import annotations

import numpy as np
import pytest

from sparsefleet import _core
from sparsefleet.errors import ConfigError, ShapeError


def test_unique_gather_and_sum_agree_with_numpy() -> None:
    random = np.random.default_rng(3)
    keys = random.integers(0, 50, 400).astype(np.uint64)
    distinct, inverse = _core.unique(keys)
    assert sorted(distinct.tolist()) == np.unique(keys).tolist()
    assert (distinct[inverse] == keys).all()
    rows = random.standard_normal((len(distinct), 7)).astype(np.float32)
    out = np.empty((400, 7), np.float32)
    _core.gather_rows(rows, inverse, out)
    assert (out == rows[inverse]).all()
    sums = np.full_like(rows, 99.0)
    _core.sum_rows(out, inverse, sums)
    wanted = np.zeros_like(rows)
    np.add.at(wanted, inverse, out)
    np.testing.assert_allclose(sums, wanted, rtol=1e-6)


def test_keys_of_several_tables_are_those_of_each_alone() -> None:
    random = np.random.default_rng(4)
    lookups = [
        [random.integers(-9, 9, size) for size in sizes] for sizes in ((30, 0, 12), (7,), ())
    ]
    padding = [[(30, 42, 2**64 - 3)], [(0, 7, 5)], []]
    keys, counts, inverse = _core.unique_of_tables(list(zip(lookups, padding, strict=True)))
    end_key = end_id = 0
    for arrays, ranges, count in zip(lookups, padding, counts, strict=True):
        joined = np.concatenate([np.empty(0, np.int64), *arrays])
        alone, places = _core.unique(joined.view(np.uint64), ranges)
        begin_key, end_key = end_key, end_key + count
        begin_id, end_id = end_id, end_id + len(joined)
        assert keys[begin_key:end_key].tolist() == alone.tolist()
        assert inverse[begin_id:end_id].tolist() == places.tolist()
    assert (end_key, end_id) == (len(keys), len(inverse))
    with pytest.raises(ConfigError, match="within the 7 keys"):
        _core.unique_of_tables([([random.integers(0, 9, 7)], [(0, 8, 0)])])


def test_empty_batch_has_no_keys() -> None:
    distinct, inverse = _core.unique(np.empty(0, np.uint64))
    assert distinct.shape == inverse.shape == (0,)
    _core.gather_rows(np.empty((0, 3), np.float32), inverse, np.empty((0, 3), np.float32))


def test_padding_has_no_key_and_reads_as_zeros() -> None:
    distinct, inverse = _core.unique(np.array([5, 0, 0, 5], np.uint64), [(0, 2, 0), (3, 4, 5)])
    assert distinct.tolist() == [5, 0]
    assert inverse.tolist() == [0, _core.PADDING_PLACE, 1, _core.PADDING_PLACE]
    out = np.empty((4, 1), np.float32)
    _core.gather_rows(np.array([[1.0], [2.0]], np.float32), inverse, out)
    assert out.ravel().tolist() == [1, 0, 2, 0]


@pytest.mark.parametrize("padding", [[(0, 5, 0)], [(2, 3, 0), (0, 1, 0)], [(2, 1, 0)]])
def test_padded_ranges_outside_of_the_keys_are_refused(padding: list) -> None:
    with pytest.raises(ConfigError, match="within the 4 keys"):
        _core.unique(np.zeros(4, np.uint64), padding)


def test_places_and_shapes_that_do_not_fit_are_refused() -> None:
    rows, out = np.zeros((2, 3), np.float32), np.zeros((1, 3), np.float32)
    with pytest.raises(ShapeError, match="inverse names row 2 of 2"):
        _core.gather_rows(rows, np.array([2], np.uint32), out)
    with pytest.raises(ShapeError, match="do not match"):
        _core.gather_rows(rows, np.array([0, 1], np.uint32), out)
    with pytest.raises(ShapeError, match="do not match"):
        _core.sum_rows(out, np.array([0], np.uint32), np.zeros((2, 4), np.float32))


def test_parts_are_joined_added_and_stepped_by_in_order() -> None:
    parts = [np.array([1, 2], np.float32), np.empty(0, np.float32), np.array([4], np.float32)]
    out = np.full(3, 9, np.float32)
    _core.join_parts(parts, out)
    assert out.tolist() == [1, 2, 4]
    _core.add_parts(parts, out)
    assert out.tolist() == [2, 4, 8]
    assert _core.step_by_parts(parts, 0.5, out)
    assert out.tolist() == [1.5, 3, 6]
    parts[0][1] = np.nan
    assert not _core.step_by_parts(parts, 0.5, out)
    assert out.tolist() == [1.5, 3, 6]


def test_parts_that_do_not_make_up_the_whole_are_refused() -> None:
    with pytest.raises(ShapeError, match="parts of 2 elements do not make up 3"):
        _core.join_parts([np.zeros(2, np.float32)], np.zeros(3, np.float32))
