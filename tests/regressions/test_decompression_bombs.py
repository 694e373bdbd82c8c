"""Memory for reading a compressed file does not depend on the size of its contents.

A zstd file of 16 KB used to become one block of 512 MiB where blocks of 1 MiB were asked for.
"""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import zstandard
from tests.support.arrow_bombs import compressed_as_by_0_17

from sparsefleet.checkpoint import import_table
from sparsefleet.data import ReaderConfig
from sparsefleet.data.byte_source import read_blocks
from sparsefleet.errors import ConfigError, InputFileError
from sparsefleet.planning.data_sample import read_sample
from sparsefleet.serving.http.examples import parse_arrow

MUCH = 256 << 20
BLOCK_BYTES = 1 << 20
ALLOWED_MIB = 48
"""Peak memory of reading, above what the process used before."""

# Not ru_maxrss: a process starts with the peak of the one that started it.
READ = """
import sys
from sparsefleet.data.byte_source import check_zstd, read_blocks
check_zstd()
def peak_kib():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
path, compression, block_bytes = sys.argv[1], sys.argv[2], int(sys.argv[3])
before, total, largest = peak_kib(), 0, 0
with open(path, "rb", buffering=0) as file:
    for block in read_blocks(file, path, compression, block_bytes):
        total += len(block)
        largest = max(largest, len(block))
print(total, largest, (peak_kib() - before) // 1024)
"""


def compressed(compression: str) -> bytes:
    piece = b"\0" * (16 << 20)
    if compression == "gzip":
        return gzip.compress(piece) * (MUCH // len(piece))
    packer = zstandard.ZstdCompressor().compressobj(size=MUCH)
    parts = [packer.compress(piece) for _ in range(MUCH // len(piece))]
    return b"".join((*parts, packer.flush()))


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells the memory of a process")
@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_memory_of_reading_does_not_depend_on_what_a_file_decompresses_to(
    tmp_path: Path, compression: str
) -> None:
    path = tmp_path / "small"
    path.write_bytes(compressed(compression))
    assert path.stat().st_size < 1 << 19
    done = subprocess.run(
        [sys.executable, "-c", READ, str(path), compression, str(BLOCK_BYTES)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    total, largest, memory_mib = map(int, done.stdout.split())
    assert total == MUCH
    assert largest <= BLOCK_BYTES
    assert memory_mib < ALLOWED_MIB


def test_zstd_file_that_asks_for_a_large_window_is_refused_before_memory_is_taken(
    tmp_path: Path,
) -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=27, enable_ldm=True)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    text = b"1 5\n" * 1000
    path = tmp_path / "part.zst"
    path.write_bytes(packer.compress(text) + packer.flush())
    with path.open("rb") as file, pytest.raises(InputFileError) as refused:
        list(read_blocks(file, str(path), "zstd", BLOCK_BYTES))
    assert str(refused.value) == (
        f"{path}: needs a zstd window of 134,217,728 bytes, more than the limit of 8,388,608: "
        "compress it without --long and --ultra, or raise ReaderConfig.max_window_bytes"
    )
    with path.open("rb") as file:
        assert b"".join(read_blocks(file, str(path), "zstd", BLOCK_BYTES, 1 << 27)) == text


def test_import_does_not_decompress_a_first_line_without_end(tmp_path: Path) -> None:
    path = tmp_path / "vectors.csv.gz"
    path.write_bytes(compressed("gzip"))
    with pytest.raises(InputFileError, match="the first line has 8,388,608 bytes or more"):
        list(import_table(str(path)))


@pytest.mark.parametrize(
    ("head", "told"),
    [(b"", "the first line has more than 16,"), (b"ad,user\n", "followed by records")],
)
def test_sample_for_planning_does_not_decompress_a_line_without_end(
    tmp_path: Path, head: bytes, told: str
) -> None:
    path = tmp_path / "clicks.csv.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(head)
        for _ in range(128):
            file.write(b"1" * (1 << 20))
    with pytest.raises((InputFileError, ConfigError), match=told):
        read_sample(str(path), file_format="csv", batch=100)


def test_window_limit_is_a_setting_of_the_reader() -> None:
    assert ReaderConfig().max_window_bytes == 8 << 20
    with pytest.raises(ConfigError, match="max_window_bytes"):
        ReaderConfig(max_window_bytes=0)


def test_compression_announced_as_by_arrow_0_17_is_refused_in_requests() -> None:
    batch = pa.record_batch({"ids": pa.array(np.zeros(1 << 20, np.int64))})
    body = compressed_as_by_0_17(batch, pa.ipc.new_stream)
    with pa.ipc.open_stream(body) as reader:
        assert reader.read_all().nbytes > 1000 * len(body)  # Arrow's reader does follow it
    with pytest.raises(ValueError, match="compressed buffers"):
        parse_arrow(body)
