"""Examples in JSON: valid ones are accepted unchanged, invalid ones are named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sparsefleet.errors import FeedError
from sparsefleet.serving.export.manifest import InputSchema, MissingInput, Schema
from sparsefleet.serving.http.examples import inputs_of_rows, parse_json

SCHEMA = Schema(
    inputs=(
        InputSchema(name="ad", dtype="int64", shape=("batch",)),
        InputSchema(name="box", dtype="float32", shape=("batch", 2, 2)),
        InputSchema(name="tags", dtype="int64", shape=("tags",), offsets=("batch",)),
        InputSchema(name="shops", dtype="int64", shape=("shops",), offsets=("batch + 1",)),
        InputSchema(name="pairs", dtype="float32", shape=("pairs", 2), offsets=("batch",)),
        InputSchema(name="new", dtype="bool", shape=("batch",)),
        InputSchema(name="hour", dtype="uint8", shape=("batch",)),
    ),
    targets=(),
    lookups=(),
)
ROW = {
    "ad": 3,
    "box": [[1, 2.5], [0, -1]],
    "tags": [7, 8],
    "shops": [],
    "pairs": [[1, 2]],
    "new": True,
    "hour": 23,
}


def row(**changes: Any) -> dict[str, Any]:
    return {**ROW, **changes}


def test_rows_become_arrays_of_the_schema() -> None:
    found = inputs_of_rows([ROW, row(ad=2**64 - 1, tags=[], shops=[5], pairs=[])], SCHEMA)
    assert found["ad"].tolist() == [3, -1]
    assert found["ad"].dtype == np.int64
    assert found["box"].shape == (2, 2, 2)
    assert found["box"].dtype == np.float32
    assert [part.tolist() for part in found["tags"]] == [[7, 8], [0, 2]]
    assert [part.tolist() for part in found["shops"]] == [[5], [0, 0, 1]]
    assert found["pairs"][0].shape == (1, 2)
    assert found["new"].dtype == np.bool_
    assert found["hour"].dtype == np.uint8


def test_missing_numbers_are_replaced_as_in_training() -> None:
    missing = (
        MissingInput(input="ad", value=9),
        MissingInput(input="box", value=0.5),
        MissingInput(input="tags", value=1),
    )
    schema = replace(SCHEMA, filled=missing)
    found = inputs_of_rows(
        [
            row(ad=None, box=[[1, None], [0, 2]], tags=[4, None]),
            row(tags=None),
        ],
        schema,
    )
    assert found["ad"].tolist() == [9, 3]
    assert found["box"][0].tolist() == [[1.0, 0.5], [0.0, 2.0]]
    assert [part.tolist() for part in found["tags"]] == [[4, 1, 1], [0, 2]]
    with pytest.raises(FeedError, match="example 0, input 'hour' has the value null"):
        inputs_of_rows([row(hour=None)], schema)


def test_whole_numbers_may_be_written_with_a_point() -> None:
    found = inputs_of_rows([row(ad=4.0, tags=[1e3, 7]), row(ad=3)], SCHEMA)
    assert found["ad"].tolist() == [4, 3]
    assert found["tags"][0].tolist() == [1000, 7, 7, 8]


def test_no_rows_are_empty_arrays() -> None:
    found = inputs_of_rows([], SCHEMA)
    assert found["box"].shape == (0, 2, 2)
    assert [part.tolist() for part in found["shops"]] == [[], [0]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ad": 1.5}, "input 'ad' has the value 1.5, expected ad: int64"),
        ({"ad": True}, "input 'ad' has the value true"),
        ({"ad": "1"}, "input 'ad' has the value \"1\""),
        ({"ad": None}, "input 'ad' has the value null"),
        ({"ad": [1]}, "input 'ad' has the value a list"),
        ({"ad": {}}, "input 'ad' has the value an object"),
        (
            {"ad": 2**64},
            "example 1, input 'ad': expected a value in -9223372036854775808..18446744073709551615",
        ),
        ({"ad": -(2**63) - 1}, "example 1, input 'ad': expected a value in"),
        ({"hour": 256}, r"input 'hour': expected a value in 0\.\.255, got 256"),
        ({"new": 1}, "input 'new' has the value 1, expected new: bool"),
        ({"box": [1, 2]}, "input 'box' must be a list, got 1"),
        ({"box": [[1, 2]]}, "input 'box' has lists of 1 to 2 values"),
        ({"box": [[1, 2], [3]]}, "input 'box' has lists of 1 to 2 values"),
        ({"box": [[1, True], [3, 4]]}, "input 'box' has the value true"),
        (
            {"box": [[1, 1e39], [3, 4]]},
            r"example 1, input 'box' has a number too large for float32: 1e\+39",
        ),
        (
            {"box": [[1, 10**400], [3, 4]]},
            "example 1, input 'box' has a number too large for float32: 1000",
        ),
        ({"tags": 7}, "example 1, input 'tags' must be a list, got 7; expected tags"),
        ({"tags": [[7]]}, "input 'tags' has the value a list"),
        ({"pairs": [[1, 2, 3]]}, "input 'pairs' has lists of 2 to 3 values"),
        ({"more": 1}, "example 1 has unknown 'more'; the model takes ad: int64"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(FeedError, match=message):
        inputs_of_rows([ROW, row(**changes)], SCHEMA)


def test_missing_inputs_are_named() -> None:
    partial = {name: value for name, value in ROW.items() if name not in ("ad", "tags")}
    with pytest.raises(FeedError, match="example 0 lacks ad, tags; the model takes"):
        inputs_of_rows([partial], SCHEMA)
    with pytest.raises(FeedError, match="example 0 must be an object"):
        inputs_of_rows([[1]], SCHEMA)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "Expecting value"),
        (b"{", "Expecting property name"),
        (b"[1] 2", "Extra data"),
        (b"\xff\xfe", "decode"),
        (b"[NaN]", "NaN is not a JSON number"),
        (b"[-Infinity]", "-Infinity is not a JSON number"),
        (b'{"a": 1, "a": 2}', "'a' occurs twice"),
        (b"[" * 100_000, "nested too deep"),
        (b"1" * 10_000, "digits"),
    ],
)
def test_malformed_json_is_an_error_of_one_kind(text: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_json(text)


def test_many_names_are_refused_in_time_that_grows_with_their_number() -> None:
    names = ",".join(f'"{n}":1' for n in range(100_000)).encode()
    with pytest.raises(ValueError, match="'z' occurs twice"):  # comparing all pairs takes hours
        parse_json(b"{" + names + b',"z":1,"z":1}')
    with pytest.raises(FeedError, match="has unknown '0', '1', "):
        inputs_of_rows([parse_json(b"{" + names + b"}")], SCHEMA)
