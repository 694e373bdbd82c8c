"""Examples in Arrow streams: complete, broken and hostile."""

from __future__ import annotations

import random
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sparsefleet.errors import FeedError
from sparsefleet.serving.export.manifest import InputSchema, Schema
from sparsefleet.serving.http.examples import (
    column_of,
    inputs_of_table,
    parse_arrow,
    table_as_stream,
)

SCHEMA = Schema(
    inputs=(
        InputSchema(name="ad", dtype="int64", shape=("batch",)),
        InputSchema(name="box", dtype="float32", shape=("batch", 2)),
        InputSchema(name="tags", dtype="int64", shape=("tags",), offsets=("batch",)),
    ),
    targets=(),
    lookups=(),
)


def columns(**changes: Any) -> dict[str, pa.Array]:
    return {
        "ad": pa.array([3, 4]),
        "box": pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32(), 2)),
        "tags": pa.array([[7, 8], []], pa.list_(pa.int64())),
        **changes,
    }


def stream(table: pa.Table, compression: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def test_columns_become_arrays_of_the_schema() -> None:
    found = inputs_of_table(parse_arrow(stream(pa.table(columns()))), SCHEMA)
    assert found["ad"].tolist() == [3, 4]
    np.testing.assert_array_equal(found["box"], np.array([[1, 2], [3, 4]], np.float32))
    assert [part.tolist() for part in found["tags"]] == [[7, 8], [0, 2]]


def test_keys_of_64_bits_are_taken_bit_for_bit() -> None:
    keys = columns(ad=pa.array([2**64 - 1, 0], pa.uint64()))
    assert inputs_of_table(pa.table(keys), SCHEMA)["ad"].tolist() == [-1, 0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ad": pa.array([1.5, 2.0])}, "column 'ad'"),
        ({"ad": pa.array([None, 2])}, "column 'ad': 1 examples have no value"),
        ({"tags": pa.array([[1, None], []])}, "column 'tags': 1 values are null"),
        ({"tags": pa.array([1, 2])}, "column 'tags'"),
        ({"box": pa.array([[1.0], [2.0]])}, "column 'box': 2 examples have 2 values"),
        ({"box": pa.array([[1.0], [2.0, 3.0, 4.0]])}, "column 'box'"),
        ({"more": pa.array([1, 2])}, "unexpected: 'more'"),
    ],
)
def test_columns_that_do_not_fit_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(FeedError, match=message):
        inputs_of_table(parse_arrow(stream(pa.table(columns(**changes)))), SCHEMA)


def test_missing_and_doubled_columns_are_named() -> None:
    with pytest.raises(FeedError, match="missing: box, tags; unexpected: 'ad' twice"):
        inputs_of_table(pa.table([pa.array([1]), pa.array([1])], names=["ad", "ad"]), SCHEMA)


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compressed_buffers_are_refused_before_they_grow(compression: str) -> None:
    table = pa.table({"ad": pa.array(np.zeros(1_000_000, np.int64))})
    with pytest.raises(ValueError, match="compressed buffers"):
        parse_arrow(stream(table, compression))


@pytest.mark.parametrize(
    "column",
    [
        pa.nulls(1_000_000),
        pa.array(["a"]).dictionary_encode(),
        pa.RunEndEncodedArray.from_arrays(pa.array([2**30], pa.int32()), pa.array([1])),
        pa.array([b"x"]),
        pa.array([[], []], pa.list_(pa.int64(), 0)),
        pa.array([{"a": 1}]),
        pa.array([[1]], pa.list_view(pa.int64())),
    ],
    ids=["null", "dictionary", "runs", "binary", "empty lists", "struct", "views"],
)
def test_types_that_could_grow_are_refused(column: pa.Array) -> None:
    with pytest.raises(ValueError, match="has type|lists of size 0|dictionaries"):
        parse_arrow(stream(pa.table({"ad": column})))


def test_columns_that_share_a_buffer_are_refused_before_they_are_copied() -> None:
    count = 1024
    column = pa.array(np.full(count, -1))
    raw = stream(pa.table({"a": column, "b": column}))
    size = count * 8
    shared = raw.replace(struct.pack("<qq", size, size), struct.pack("<qq", 0, size))
    data = b"\xff" * size
    shared = shared.replace(data + data, data).replace(
        struct.pack("<q", 2 * size), struct.pack("<q", size)
    )
    assert pa.ipc.open_stream(shared).read_all().column("b").to_pylist() == [-1] * count
    with pytest.raises(ValueError, match="share a buffer"):
        parse_arrow(shared)
    assert parse_arrow(raw).num_rows == count


def test_changed_bytes_end_in_an_error_or_in_examples() -> None:
    raw = stream(pa.table(columns()))
    chance = random.Random(0)
    for _ in range(2000):
        changed = bytearray(raw[: chance.choice([len(raw), chance.randrange(len(raw))])])
        for _ in range(chance.randint(0, 3)):
            if changed:
                changed[chance.randrange(len(changed))] = chance.randrange(256)
        try:
            inputs_of_table(parse_arrow(bytes(changed)), SCHEMA)
        except (ValueError, OSError, pa.ArrowException):
            continue


def test_predictions_come_back_as_they_were() -> None:
    scores = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    raw = table_as_stream({"score": column_of(scores)}, {"version": "abc"})
    table = pa.ipc.open_stream(raw).read_all()
    assert table.schema.metadata == {b"version": b"abc"}
    assert table.column("score").to_pylist() == scores.tolist()
