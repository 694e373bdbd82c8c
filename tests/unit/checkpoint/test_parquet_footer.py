"""Codecs in Parquet footers: files that Arrow writes, and damaged ones."""

from __future__ import annotations

import contextlib
import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparsefleet.checkpoint.row_file_reader import KNOWN_CODECS, codecs_of


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
    with pytest.raises(ValueError, match="no footer of a Parquet file"):
        codecs_of(io.BytesIO(raw))


@pytest.mark.parametrize(
    "footer", [b"\x1c" * 9_999, b"\x19" * 9_999, b"\x1b" + b"\x01\xbb" * 9_999]
)
def test_structs_lists_and_maps_nested_without_end_are_refused(footer: bytes) -> None:
    with pytest.raises(ValueError, match="nested more than 32 levels"):
        codecs_of(io.BytesIO(footer + len(footer).to_bytes(4, "little") + b"PAR1"))
