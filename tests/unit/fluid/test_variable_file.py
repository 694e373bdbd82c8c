"""Files of variables, written and read in pieces."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save_file

from sparsefleet.errors import CorruptFileError
from sparsefleet.fluid.io.variable_file import (
    ArrayRows,
    ArrayToWrite,
    FileRows,
    RowsToWrite,
    RowWidths,
    VariableFile,
    write_variables,
)
from sparsefleet.store import Rows


def rows_of(begin: int, count: int, widths: RowWidths) -> Rows:
    keys = np.arange(begin, begin + count, dtype=np.uint64)

    def column(width: int, dtype: str, factor: int) -> Any:
        return (keys[:, None] * factor + np.arange(width, dtype=np.uint64)).astype(dtype)

    return Rows(
        keys,
        column(widths.dim, "float32", 3),
        column(widths.state, "float32", 5),
        column(widths.counters, "uint32", 7),
    )


def chunks(sizes: list[int], widths: RowWidths) -> Iterator[Rows]:
    begin = 0
    for size in sizes:
        yield rows_of(begin, size, widths)
        begin += size


@pytest.mark.parametrize("sizes", [[], [1], [5, 7, 1], [4000]])
@pytest.mark.parametrize("widths", [(3, 0, 0), (3, 7, 0), (8, 1, 2)])
def test_the_safetensors_package_reads_what_was_streamed(
    sizes: list[int], widths: tuple[int, int, int]
) -> None:
    file = io.BytesIO()
    table = RowWidths(*widths)
    dense = np.arange(6, dtype=np.int64).reshape(2, 3)
    write_variables(
        file,
        [
            RowsToWrite("ads", table, "adam", chunks(sizes, table)),
            ArrayToWrite("bias", dense),
            RowsToWrite("users", table, "sgd", chunks(sizes[:1], table)),
            ArrayToWrite("scalar", np.array(2.5)),
        ],
    )
    found = load(file.getvalue())
    wanted = rows_of(0, sum(sizes), table)
    for part in Rows._fields:
        np.testing.assert_array_equal(found[f"ads//{part}"], getattr(wanted, part))
        assert found[f"ads//{part}"].shape == getattr(wanted, part).shape
        assert len(found[f"users//{part}"]) == sum(sizes[:1])
    np.testing.assert_array_equal(found["bias"], dense)
    assert found["scalar"] == 2.5


def test_files_of_the_safetensors_package_are_read_in_chunks(tmp_path: Path) -> None:
    widths = RowWidths(512, 512, 1)
    wanted = rows_of(0, 3000, widths)
    arrays = {f"ads//{part}": getattr(wanted, part) for part in Rows._fields}
    save_file({**arrays, "whole": wanted.values}, tmp_path / "ads", {"ads//optimizer": "adagrad"})
    file = VariableFile(tmp_path / "ads")
    rows = FileRows(file, "ads")
    assert (rows.optimizer, rows.widths) == ("adagrad", widths)
    found = list(rows.chunks())
    assert len(found) > 2
    assert max(sum(column.nbytes for column in chunk) for chunk in found) <= 4 << 20
    for part in Rows._fields:
        joined = np.concatenate([getattr(chunk, part) for chunk in found])
        np.testing.assert_array_equal(joined, getattr(wanted, part))
    assert {chunk.state.shape[1] for chunk in rows.chunks(with_state=False)} == {0}
    by_id = list(ArrayRows(file, "whole").chunks())
    assert len(by_id) > 1
    np.testing.assert_array_equal(np.concatenate([c.keys for c in by_id]), np.arange(3000))
    np.testing.assert_array_equal(np.concatenate([c.values for c in by_id]), wanted.values)


def header(tensors: dict[str, Any], data: bytes = b"") -> bytes:
    text = json.dumps(tensors).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(shape: list[int], offsets: list[int], dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "found 0 bytes"),
        (b"\x80\x04abcdefg", "looks like a pickle"),
        (struct.pack("<Q", 2**62), "a header of 4611686018427387904 bytes in a file of 8"),
        (struct.pack("<Q", 3) + b"abc", "not JSON"),
        (struct.pack("<Q", 2) + b"[]", "not a JSON object"),
        (header({"__metadata__": {"a": 1}}), "__metadata__"),
        (header({"w": entry([2], [0, 8])}, b"1234"), "truncated"),
        (header({"w": entry([2], [0, 8])}, b"123456789"), "truncated or has trailing data"),
        (header({"w": entry([2], [4, 12])}, b"123456789012"), "instead of"),
        (header({"w": entry([3], [0, 8])}, b"12345678"), "description of tensor 'w'"),
        (header({"w": entry([-1], [0, -4])}), "description of tensor 'w'"),
        (header({"w": entry([1], [0, 4], "F99")}, b"1234"), "description of tensor 'w'"),
        (header({"w": entry([1], [0, 4]), "v": entry([1], [0, 4])}, b"1234"), "instead of"),
        (header({"w": {"dtype": "F32"}}), "description of tensor 'w'"),
    ],
)
def test_a_damaged_file_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "ads"
    path.write_bytes(content)
    with pytest.raises(CorruptFileError, match=message) as caught:
        VariableFile(path)
    assert str(path) in str(caught.value)


def test_rows_of_different_lengths_are_refused(tmp_path: Path) -> None:
    rows = rows_of(0, 4, RowWidths(2, 0, 0))
    arrays = {f"ads//{part}": getattr(rows, part) for part in Rows._fields}
    save_file({**arrays, "ads//keys": rows.keys[:3]}, tmp_path / "short")
    with pytest.raises(CorruptFileError, match=r"expected keys \[N\].*found shapes \(3,\)"):
        FileRows(VariableFile(tmp_path / "short"), "ads")
    del arrays["ads//state"]
    save_file(arrays, tmp_path / "part")
    with pytest.raises(CorruptFileError, match="expected an array 'ads//state', found none"):
        FileRows(VariableFile(tmp_path / "part"), "ads")


def test_a_file_that_is_replaced_while_it_is_read_is_noticed(tmp_path: Path) -> None:
    save_file({"w": np.zeros(4, np.float32)}, tmp_path / "w")
    file = VariableFile(tmp_path / "w")
    save_file({"w": np.ones(8, np.float32)}, tmp_path / "new")
    (tmp_path / "new").replace(tmp_path / "w")
    with pytest.raises(CorruptFileError, match="was replaced while it was being read"):
        file.read("w")
