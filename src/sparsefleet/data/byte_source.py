"""The bytes of a file, decompressed, in blocks."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import IO, Any, Literal, get_args

from sparsefleet.errors import ConfigError, InputFileError, InputMissingError

Compression = Literal["infer", "none", "gzip", "zstd"]
COMPRESSIONS = get_args(Compression)
_GZIP_WITH_HEADER = 31  # zlib: window of 32 KiB, and gzip's header and checksum


def compression_of(path: str, setting: Compression) -> str:
    """ "none", "gzip" or "zstd"; "infer" goes by the end of the name."""
    if setting != "infer":
        return setting
    if path.endswith(".gz"):
        return "gzip"
    return "zstd" if path.endswith((".zst", ".zstd")) else "none"


def check_zstd() -> None:
    """Raises if the package that reads zstd is not there."""
    try:
        import zstandard  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "files compressed by zstd need the package zstandard: pip install sparsefleet[zstd]"
        ) from error


def open_file(path: str, storage_options: Mapping[str, Any]) -> IO[bytes]:
    """The file as it is, for reading; unbuffered where it is local."""
    try:
        if "://" not in path:
            return open(path, "rb", buffering=0)
        import fsspec

        opened: IO[bytes] = fsspec.open(path, "rb", **storage_options).open()
        return opened
    except FileNotFoundError as error:
        raise InputMissingError(f"{path}: there is no such file") from error
    except (OSError, ImportError, ValueError) as error:
        raise InputFileError(f"{path}: cannot be opened: {error}") from error


def read_blocks(file: IO[bytes], path: str, compression: str, block_bytes: int) -> Iterator[bytes]:
    """Blocks of up to about `block_bytes`, none of them empty. Names `path` in errors."""
    try:
        if compression == "gzip":
            yield from _gunzip(file, path, block_bytes)
        elif compression == "zstd":
            yield from _unzstd(file, path, block_bytes)
        else:
            while block := file.read(block_bytes):
                yield block
    except OSError as error:
        if isinstance(error, InputFileError):
            raise
        raise InputFileError(f"{path}: cannot be read: {error}") from error


def _gunzip(file: IO[bytes], path: str, block_bytes: int) -> Iterator[bytes]:
    """All members of a gzip file, one after the other; zlib works without the GIL."""
    member = zlib.decompressobj(_GZIP_WITH_HEADER)
    packed = b""
    while packed or (packed := file.read(block_bytes)):
        if member.eof:
            packed = packed.lstrip(b"\0")  # some writers pad
            if not packed:
                continue
            member = zlib.decompressobj(_GZIP_WITH_HEADER)
        try:
            block = member.decompress(packed, block_bytes)
        except zlib.error as error:
            raise InputFileError(f"{path}: is no gzip file, or is damaged: {error}") from error
        packed = member.unused_data if member.eof else member.unconsumed_tail
        if block:
            yield block
    if not member.eof and (block := member.flush()):  # output that had no room before
        yield block
    if not member.eof:
        raise InputFileError(
            f"{path}: the gzip data ends too early: the file was cut off, or is still written"
        )


def _unzstd(file: IO[bytes], path: str, block_bytes: int) -> Iterator[bytes]:
    check_zstd()
    import zstandard

    decompressor = zstandard.ZstdDecompressor()
    frame = None
    try:
        while packed := file.read(block_bytes):
            while packed:
                if frame is None or frame.eof:
                    frame = decompressor.decompressobj(read_across_frames=False)
                block = frame.decompress(packed)
                packed = frame.unused_data if frame.eof else b""
                if block:
                    yield block
    except zstandard.ZstdError as error:
        raise InputFileError(f"{path}: is no zstd file, or is damaged: {error}") from error
    if frame is None or not frame.eof:
        raise InputFileError(
            f"{path}: the zstd data ends too early: the file was cut off, or is still written"
        )
