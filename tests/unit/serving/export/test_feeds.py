"""The inputs that predictions accept, and errors for others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from sparsefleet.errors import FeedError
from sparsefleet.serving.export.feeds import check_feeds
from sparsefleet.serving.export.manifest import InputSchema, Schema

COUNTS = InputSchema(name="counts", dtype="float32", shape=("batch", 2))
TAGS = InputSchema(name="tags", dtype="int64", shape=("tags",), offsets=("batch",))
CLOSED = InputSchema(name="shops", dtype="int64", shape=("shops",), offsets=("batch + 1",))
SLOTS = tuple(
    InputSchema(name=f"slots.{index}", dtype="int64", shape=("batch",)) for index in range(2)
)
SCHEMA = Schema(inputs=(COUNTS, TAGS, CLOSED), targets=(), lookups=())


def good() -> dict[str, Any]:
    return {
        "counts": np.zeros((2, 2), np.float32),
        "tags": (np.arange(3), np.array([0, 1])),
        "shops": (np.arange(3), np.array([0, 1, 3])),
    }


def test_dict_tuple_and_tensors_are_the_same_inputs() -> None:
    wanted = check_feeds(SCHEMA, good())
    ragged = ["tags.values", "tags.offsets", "shops.values", "shops.offsets"]
    assert list(wanted) == ["counts", *ragged]
    as_tensors = {
        name: torch.as_tensor(value)
        if isinstance(value, np.ndarray)
        else tuple(map(torch.as_tensor, value))
        for name, value in good().items()
    }
    for other in (tuple(good().values()), as_tensors):
        found = check_feeds(SCHEMA, other)
        for name, array in wanted.items():
            np.testing.assert_array_equal(found[name], array)


def test_one_input_needs_no_name_and_no_tuple() -> None:
    schema = Schema(inputs=(TAGS,), targets=(), lookups=())
    pair = good()["tags"]
    for given in (pair, (pair,), {"tags": pair}):
        assert list(check_feeds(schema, given)) == ["tags.values", "tags.offsets"]


def test_nests_are_taken_apart_as_the_schema_has_them() -> None:
    schema = Schema(inputs=(COUNTS, *SLOTS), targets=(), lookups=())
    counts, ids = good()["counts"], np.array([5, 6])
    for given in (
        (counts, [ids, ids]),
        {"counts": counts, "slots": [ids, ids]},
        {"counts": counts, "slots.0": ids, "slots.1": ids},
    ):
        assert list(check_feeds(schema, given)) == ["counts", "slots.0", "slots.1"]


def test_keys_as_uint64_are_taken_bit_for_bit() -> None:
    schema = Schema(inputs=(SLOTS[0],), targets=(), lookups=())
    found = check_feeds(schema, {"slots.0": np.array([2**64 - 1], np.uint64)})
    np.testing.assert_array_equal(found["slots.0"], [-1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"counts": np.zeros((2, 2))},
            r"'counts' is float64\[2, 2\], expected .*float32\[batch, 2\]",
        ),
        ({"counts": np.zeros((2, 3), "f4")}, r"'counts' is float32\[2, 3\], expected"),
        ({"counts": np.zeros(2, "f4")}, r"'counts' is float32\[2\], expected"),
        ({"counts": np.zeros((5, 2), "f4")}, "'batch' is 5 in the first and 2 in the second"),
        ({"counts": [[1.0], [1.0, 2.0]]}, "'counts' cannot be read as an array"),
        ({"counts": None}, r"'counts' is object\[\]"),
        (
            {"tags": np.arange(3)},
            r"'tags' is ragged and must be a pair \(values, offsets\)",
        ),
        ({"tags": (np.arange(3.0), np.array([0, 1]))}, "'tags.values' is float64"),
        ({"tags": (np.arange(3), np.array([0, 1], "i2"))}, "'tags.offsets' is int16"),
        ({"tags": (np.arange(3), np.array([1, 2]))}, "offsets must start at 0, got 1"),
        ({"tags": (np.arange(3), np.array([0, 9]))}, "stay within 3 values, but go up to 9"),
        ({"shops": (np.arange(3), np.array([0, 2, 1]))}, "not decrease, but 2 is followed by 1"),
        ({"shops": (np.arange(3), np.array([0, 1, 2]))}, "end at the number of values, 3, got 2"),
        ({"shops": (np.arange(3), np.array([0, 3]))}, "'batch' is 2 in the first and 1"),
        (
            {"label": np.zeros(2)},
            r"unknown: label\); the model takes counts: float32",
        ),
    ],
)
def test_inputs_that_do_not_fit_are_reported_with_what_was_given_and_wanted(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(FeedError, match=message):
        check_feeds(SCHEMA, good() | change)


def test_array_of_another_byte_order_is_refused() -> None:
    counts = np.zeros((2, 2), np.dtype(np.float32).newbyteorder())
    with pytest.raises(FeedError, match=r"'counts' .* convert it with \.astype\(np\.float32\)"):
        check_feeds(SCHEMA, {**good(), "counts": counts})


def test_missing_inputs_are_named() -> None:
    with pytest.raises(FeedError, match="missing: tags, shops"):
        check_feeds(SCHEMA, {"counts": good()["counts"]})
    with pytest.raises(FeedError, match="got 2 inputs, expected 3: counts, tags, shops"):
        check_feeds(SCHEMA, (1, 2))
