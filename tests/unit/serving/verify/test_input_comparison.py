"""Comparing two forms of the same examples, and guessing what happened."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsefleet.serving.verify.inputs_check import compare_inputs

RNG = np.random.default_rng(0)
IDS = RNG.integers(0, 1000, (50, 3)) + np.array([0, 1000, 2000])
FLOATS = RNG.lognormal(0, 1, (50, 2)).astype(np.float32)


def names(offline: Any, online: Any) -> set[str]:
    return {finding.name for finding in compare_inputs({"x": offline}, {"x": online})}


@pytest.mark.parametrize("array", [IDS, FLOATS, IDS[:, 0], np.zeros((0, 3), np.int64)])
def test_equal_inputs_have_no_findings(array: np.ndarray) -> None:
    assert names(array, array.copy()) == set()


def test_values_that_are_not_numbers_are_equal_to_each_other() -> None:
    assert names(np.array([1.0, np.nan]), np.array([1.0, np.nan])) == set()


@pytest.mark.parametrize(
    ("offline", "online", "name"),
    [
        (IDS, IDS[:, [1, 0, 2]], "slots swapped"),
        (IDS, IDS - 1, "ids shifted"),
        (IDS, IDS + 2**40, "ids shifted"),
        (IDS.astype(np.int32), IDS.astype(np.int32) + 1, "ids shifted"),
        (IDS > 1500, IDS > 1400, "values differ"),
        (IDS, (IDS * 7919) % 101, "ids hashed differently"),
        (IDS, IDS.astype(np.float64), "wrong dtype"),
        (IDS, IDS[:40], "examples differ"),
        (FLOATS, FLOATS * 255, "values scaled"),
        (FLOATS, (FLOATS - 1.5) / 2, "values scaled"),
        (FLOATS, np.log1p(FLOATS), "values scaled"),
        (np.log1p(FLOATS), FLOATS, "values scaled"),
        (FLOATS, FLOATS.astype(np.float16).astype(np.float32), "values rounded"),
        (FLOATS, FLOATS[::-1], "examples reordered"),
        (FLOATS, RNG.random((50, 2), np.float32), "values differ"),
        (np.array([0.0, 2, 3, 0]), np.array([np.nan, 2, 3, np.nan]), "missing values"),
        (np.array([5, -1, 7]), np.array([5, 0, 7]), "missing values"),
    ],
)
def test_difference_is_named(offline: np.ndarray, online: np.ndarray, name: str) -> None:
    assert names(offline, online) == {name}


def test_one_different_id_is_not_a_hash() -> None:
    online = IDS.copy()
    online[7, 1] += 5
    [finding] = compare_inputs({"ids": IDS}, {"ids": online})
    assert finding.name == "values differ"
    assert finding.what == "input 'ids[1]'"
    assert finding.examples == (f"example 7: offline {IDS[7, 1]}, online {IDS[7, 1] + 5}",)


def test_inputs_that_only_one_side_has() -> None:
    found = compare_inputs({"a": IDS, "b": IDS}, {"a": IDS, "c": IDS})
    assert [(f.name, f.what) for f in found if "[0]" in f.what] == [
        ("input missing", "input 'b[0]'"),
        ("input unknown", "input 'c[0]'"),
    ]


@given(
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20),
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20),
)
def test_any_two_lists_of_ids_are_compared(one: list[int], two: list[int]) -> None:
    findings = compare_inputs({"x": np.array(one)}, {"x": np.array(two)})
    assert bool(findings) == (one != two)


@given(
    st.lists(st.floats(width=32), min_size=1, max_size=20),
    st.lists(st.floats(width=32), min_size=1, max_size=20),
)
def test_any_two_lists_of_floats_are_compared(one: list[float], two: list[float]) -> None:
    left, right = np.array(one, np.float32), np.array(two, np.float32)
    findings = compare_inputs({"x": left}, {"x": right})
    assert bool(findings) != np.array_equal(left, right, equal_nan=True)
