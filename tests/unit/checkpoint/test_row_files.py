"""Row files: what the writer writes and what the reader rejects."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from sparsefleet.checkpoint.row_file_reader import KNOWN_CODECS, codecs_of
from sparsefleet.checkpoint.row_file_writer import Column, ParquetWriter


def written(columns: list[Column], chunks: list[list[NDArray[Any]]]) -> bytes:
    file = io.BytesIO()
    writer = ParquetWriter(file.write, columns, {"about": "größe"})
    for chunk in chunks:
        writer.write(chunk)
    writer.close()
    assert writer.num_bytes == len(file.getvalue())
    return file.getvalue()


def bits(dtype: str, shape: tuple[int, ...], seed: int) -> NDArray[Any]:
    """Return arbitrary bits: NaN with every payload, infinities, denormal numbers."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer(np.random.default_rng(seed).bytes(size), dtype).reshape(shape)


@settings(max_examples=60, deadline=None)
@given(
    width=st.integers(1, 40),
    sizes=st.lists(st.integers(0, 300), max_size=5),
    seed=st.integers(0, 2**32),
)
def test_another_reader_gets_the_same_bits(width: int, sizes: list[int], seed: int) -> None:
    columns = [Column("key", "uint64"), Column("x", "float32", width), Column("n", "uint32", 2)]
    chunks = [
        [
            bits("uint64", (n,), seed),
            bits("float32", (n, width), seed),
            bits("uint32", (n, 2), seed),
        ]
        for n in sizes
    ]
    table = pq.read_table(io.BytesIO(written(columns, chunks)))
    assert table.column_names == ["key", "x", "n"]
    assert table.num_rows == sum(sizes)
    for place, name in enumerate(table.column_names):
        wanted = b"".join(chunk[place].tobytes() for chunk in chunks)
        flat = table[name].combine_chunks()
        flat = flat if name == "key" else flat.flatten()
        assert flat.to_numpy().tobytes() == wanted


def test_many_pages_and_row_groups_are_read_by_duckdb_and_pandas(tmp_path: Path) -> None:
    count, width = 300_000, 24
    keys = np.random.default_rng(1).permutation(count).astype(np.uint64)
    values = np.random.default_rng(2).standard_normal((count, width), np.float32)
    columns = [Column("key", "uint64"), Column("values", "float32", width)]
    file = tmp_path / "rows.parquet"
    file.write_bytes(written(columns, [[keys[:7], values[:7]], [keys[7:], values[7:]]]))
    assert pq.ParquetFile(file).num_row_groups > 1
    found = duckdb.sql(f"select key, values from read_parquet('{file}')").fetchnumpy()
    assert np.array_equal(found["key"], keys)
    assert np.array_equal(np.stack(found["values"]), values)
    frame = pd.read_parquet(file)
    assert np.array_equal(frame["key"].to_numpy(), keys)
    assert np.array_equal(np.stack(frame["values"].to_list()), values)


def test_a_wide_row_is_larger_than_a_page() -> None:
    values = bits("float32", (3, 400_000), 5)
    data = written([Column("values", "float32", 400_000)], [[values]])
    found = pq.read_table(io.BytesIO(data))["values"].combine_chunks().flatten()
    assert found.to_numpy().tobytes() == values.tobytes()


@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_that_are_views_are_written_as_they_look(order: Any) -> None:
    values = np.asarray(np.arange(60, dtype=np.float32).reshape(6, 10), order=order)[::2, 1:4]
    data = written([Column("values", "float32", 3)], [[values]])
    assert pq.read_table(io.BytesIO(data))["values"].to_pylist() == values.tolist()


def parquet(**options: object) -> bytes:
    file = io.BytesIO()
    table = pa.table({"key": range(100), "text": ["a"] * 100, "flags": [[True, None]] * 100})
    pq.write_table(table, file, row_group_size=30, **options)
    return file.getvalue()


@pytest.mark.parametrize(
    ("compression", "codecs"),
    [
        ("NONE", {0}),
        ("SNAPPY", {1}),
        ("GZIP", {2}),
        ({"key": "ZSTD", "text": "NONE", "flags.list.element": "LZ4"}, {6, 0, 7}),
    ],
)
@pytest.mark.parametrize("has_statistics", [True, False])
def test_codecs_of_all_columns_are_found(
    compression: object, codecs: set[int], has_statistics: bool
) -> None:
    raw = parquet(compression=compression, write_statistics=has_statistics, write_page_index=True)
    assert codecs_of(io.BytesIO(raw)) == codecs
    assert codecs <= set(KNOWN_CODECS)


def test_damaged_footer_is_a_value_error_or_other_codecs() -> None:
    raw = parquet(compression="NONE")
    begin = len(raw) - 8 - int.from_bytes(raw[-8:-4], "little")
    for at in range(begin, len(raw)):
        for byte in (0, 0x15, 0x19, 0x1C, 0xFF):
            damaged = raw[:at] + bytes([byte]) + raw[at + 1 :]
            with contextlib.suppress(ValueError):
                codecs_of(io.BytesIO(damaged))


@pytest.mark.parametrize("raw", [b"", b"PAR1", b"\xff\xff\xff\x7fPAR1", b"\x00\x00\x00\x00PARE"])
def test_file_without_a_footer_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match="no Parquet footer"):
        codecs_of(io.BytesIO(raw))


@pytest.mark.parametrize(
    "footer", [b"\x1c" * 9_999, b"\x19" * 9_999, b"\x1b" + b"\x01\xbb" * 9_999]
)
def test_structs_lists_and_maps_nested_without_end_are_refused(footer: bytes) -> None:
    with pytest.raises(ValueError, match="nested more than 32 levels"):
        codecs_of(io.BytesIO(footer + len(footer).to_bytes(4, "little") + b"PAR1"))
