from __future__ import annotations

import gzip
import io
import random
import struct
import sys
from pathlib import Path

import fsspec
import pytest
import zstandard
from tests.unit.data.data_files import ONE_ID, lines_of, read_ids

from sparsefleet.data import Reader, ReaderConfig
from sparsefleet.data.byte_source import read_blocks
from sparsefleet.errors import ConfigError, InputFileError

TEXT = lines_of(random.Random(1).randrange(10**9) for _ in range(2000)).encode()


def unpack(packed: bytes, compression: str, block_bytes: int) -> bytes:
    return b"".join(read_blocks(io.BytesIO(packed), "data", compression, block_bytes))


@pytest.mark.parametrize("block_bytes", [1, 7, 1000, 10**6])
def test_gzip_of_one_or_more_members_is_read_whole(block_bytes: int) -> None:
    text = TEXT[:3000]
    assert unpack(gzip.compress(text), "gzip", block_bytes) == text
    two = gzip.compress(text[:1000]) + gzip.compress(text[1000:]) + b"\0" * 20
    assert unpack(two, "gzip", block_bytes) == text


def test_much_text_from_few_bytes_comes_in_blocks() -> None:
    packed = gzip.compress(b"1 5\n" * 10**6)
    blocks = list(read_blocks(io.BytesIO(packed), "data", "gzip", 4096))
    assert max(map(len, blocks)) <= 4096
    assert b"".join(blocks) == b"1 5\n" * 10**6


def test_gzip_that_is_cut_off_anywhere_is_an_error() -> None:
    packed = gzip.compress(TEXT[:200])
    for size in range(len(packed)):
        with pytest.raises(InputFileError, match="data: the gzip data ends too early"):
            unpack(packed[:size], "gzip", 64)


def test_gzip_that_is_damaged_or_none_is_an_error() -> None:
    packed = bytearray(gzip.compress(TEXT))
    packed[-6] ^= 1  # the checksum
    with pytest.raises(InputFileError, match="damaged"):
        unpack(bytes(packed), "gzip", 10**6)
    with pytest.raises(InputFileError, match="not a gzip file"):
        unpack(TEXT, "gzip", 10**6)
    with pytest.raises(InputFileError, match="not a gzip file"):
        unpack(gzip.compress(TEXT) + b"garbage", "gzip", 10**6)


def test_zstd_is_read_whole_or_refused() -> None:
    packed = zstandard.ZstdCompressor().compress(TEXT)
    assert unpack(packed + packed, "zstd", 100) == TEXT + TEXT
    for size in (0, 5, len(packed) - 1):
        with pytest.raises(InputFileError, match="ends too early"):
            unpack(packed[:size], "zstd", 100)
    with pytest.raises(InputFileError, match="not a zstd file"):
        unpack(TEXT, "zstd", 100)


@pytest.mark.parametrize("block_bytes", [1, 1000, 1 << 18])
def test_zstd_of_every_kind_of_frame_is_read_whole(block_bytes: int) -> None:
    compressor = zstandard.ZstdCompressor(write_checksum=True, write_content_size=False)
    noise = random.Random(2).randbytes(300_000)  # blocks that are stored as they are
    much = b"ab" * 300_000
    parts = [TEXT, noise, b"", b"\0" * 300_000, b"x" * 300]  # repeated bytes; one small segment
    packed = [zstandard.ZstdCompressor().compress(part) for part in parts]
    streamed = compressor.compressobj()
    packed.append(
        streamed.compress(much)
        + streamed.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        + streamed.flush()
    )
    skipped = struct.pack("<II", 0x184D2A57, 1000) + b"s" * 1000
    wanted = b"".join((*parts, much))
    assert unpack(skipped.join(packed), "zstd", block_bytes) == wanted


def test_zstd_that_is_cut_off_anywhere_is_an_error() -> None:
    frame = zstandard.ZstdCompressor(write_checksum=True).compress(TEXT[:3000])
    packed = struct.pack("<II", 0x184D2A50, 20) + b"s" * 20 + frame
    for size in range(len(packed)):
        if size == 28:  # a whole frame, which has no content
            assert unpack(packed[:size], "zstd", 64) == b""
            continue
        with pytest.raises(InputFileError, match="data: the zstd data ends too early"):
            unpack(packed[:size], "zstd", 64)


def test_zstd_that_is_damaged_anywhere_is_an_error_or_read_as_it_was() -> None:
    packed = zstandard.ZstdCompressor(write_checksum=True).compress(TEXT[:2000])
    refused = 0
    for at in range(len(packed)):
        damaged = bytearray(packed)
        damaged[at] ^= 0x55
        try:
            assert unpack(bytes(damaged), "zstd", 4096) == TEXT[:2000]
        except InputFileError:
            refused += 1
    assert refused >= len(packed) - 2


def test_zstd_without_its_package_is_reported_with_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    (tmp_path / "part.zst").touch()
    with pytest.raises(ConfigError, match=r"pip install sparsefleet\[zstd\]"):
        Reader(tmp_path / "part.zst", ONE_ID, 10)


def test_compression_goes_by_the_name_or_by_the_setting(tmp_path: Path) -> None:
    (tmp_path / "part.gz").write_bytes(gzip.compress(b"1 1\n"))
    (tmp_path / "part").write_bytes(gzip.compress(b"1 2\n"))
    assert read_ids(Reader(tmp_path / "part.gz", ONE_ID, 10)) == [1]
    config = ReaderConfig(compression="gzip")
    assert read_ids(Reader(tmp_path / "part", ONE_ID, 10, config=config)) == [2]


def test_files_of_fsspec_are_read() -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe("/read/a.gz", gzip.compress(b"1 1\n1 2\n"))
    memory.pipe("/read/b", b"1 3\n")
    assert read_ids(Reader("memory://read/*", ONE_ID, 2)) == [1, 2, 3]
