"""Opens files and decompresses them block by block, in bounded memory.

zstd needs care: the decompressor in the zstandard package returns everything that its input
decompresses to at once, and four bytes of zstd can expand to 128 KiB. The code therefore reads the
block headers in each frame and decompresses only a few blocks at a time. RFC 8878, section 3,
describes the layout.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import IO, Any, Literal, NamedTuple, get_args

from sparsefleet.errors import ConfigError, InputFileError, InputMissingError

__all__ = ["CutOffError", "FormatError", "Piece", "WindowError", "zstd_pieces"]


Compression = Literal["infer", "none", "gzip", "zstd"]
COMPRESSIONS = get_args(Compression)
DEFAULT_WINDOW_BYTES = 8 << 20
"""The window size that RFC 8878 recommends every zstd decoder support."""

_GZIP_WITH_HEADER = 31  # zlib: window of 32 KiB, and gzip's header and checksum
MAX_BLOCK_BYTES = 128 << 10
"""The largest number of bytes that one block can decompress to."""
_MAGIC = 0xFD2FB528
_SKIPPABLE_MAGIC = 0x184D2A50  # and the next 15
_MIN_WINDOW_LOG = 10
_RLE_BLOCK, _RESERVED_BLOCK = 1, 3
_DICTIONARY_ID_BYTES = (0, 1, 2, 4)
_CONTENT_SIZE_BYTES = (0, 2, 4, 8)


def compression_of(path: str, setting: Compression) -> str:
    """Return "none", "gzip" or "zstd"; "infer" uses the file name's suffix."""
    if setting != "infer":
        return setting
    if path.endswith(".gz"):
        return "gzip"
    return "zstd" if path.endswith((".zst", ".zstd")) else "none"


def check_zstd() -> None:
    """Raise ConfigError if the package that reads zstd is not installed."""
    try:
        import zstandard  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "reading zstd files requires the zstandard package; run `pip install sparsefleet[zstd]`"
        ) from error


def open_file(path: str, storage_options: Mapping[str, Any]) -> IO[bytes]:
    """Open the raw file for reading; local files are unbuffered."""
    try:
        if "://" not in path:
            return open(path, "rb", buffering=0)
        import fsspec

        opened: IO[bytes] = fsspec.open(path, "rb", **storage_options).open()
        return opened
    except FileNotFoundError as error:
        raise InputMissingError(f"{path}: no such file; check the path") from error
    except (OSError, ImportError, ValueError) as error:
        raise InputFileError(f"{path}: cannot open the file: {error}") from error


def read_blocks(
    file: IO[bytes],
    path: str,
    compression: str,
    block_bytes: int,
    max_window_bytes: int = DEFAULT_WINDOW_BYTES,
) -> Iterator[bytes]:
    """Yield blocks of 1 to `block_bytes` bytes, no matter how well the file compresses.

    path: named in error messages.
    max_window_bytes: a zstd file that needs a larger window is rejected.
    """
    try:
        if compression == "gzip":
            yield from _gunzip(file, path, block_bytes)
        elif compression == "zstd":
            yield from _unzstd(file, path, block_bytes, max_window_bytes)
        else:
            while block := file.read(block_bytes):
                yield block
    except OSError as error:
        if isinstance(error, InputFileError):
            raise
        raise InputFileError(f"{path}: cannot read the file: {error}") from error


def _gunzip(file: IO[bytes], path: str, block_bytes: int) -> Iterator[bytes]:
    """Yield the decompressed data of all members of a gzip file; zlib releases the GIL."""
    member = zlib.decompressobj(_GZIP_WITH_HEADER)
    packed = b""
    while packed or (packed := file.read(block_bytes)):
        if member.eof:
            packed = packed.lstrip(b"\0")  # some programs pad the end of the file
            if not packed:
                continue
            member = zlib.decompressobj(_GZIP_WITH_HEADER)
        try:
            block = member.decompress(packed, block_bytes)
        except zlib.error as error:
            raise InputFileError(f"{path}: not a gzip file, or damaged: {error}") from error
        packed = member.unused_data if member.eof else member.unconsumed_tail
        if block:
            yield block
    if not member.eof and (block := member.flush()):  # output that had no room before
        yield block
    if not member.eof:
        raise InputFileError(
            f"{path}: the gzip data ends too early: the file is truncated or still being written"
        )


def _unzstd(file: IO[bytes], path: str, block_bytes: int, max_window_bytes: int) -> Iterator[bytes]:
    check_zstd()
    import zstandard

    decompressor = zstandard.ZstdDecompressor(max_window_size=max_window_bytes)
    frame = None
    try:
        for piece in zstd_pieces(file, block_bytes, block_bytes, max_window_bytes):
            if piece.begins_frame:
                frame = decompressor.decompressobj(read_across_frames=False)
            assert frame is not None
            output = frame.decompress(piece.data)
            for begin in range(0, len(output), block_bytes):
                yield output[begin : begin + block_bytes]
    except CutOffError:
        raise InputFileError(
            f"{path}: the zstd data ends too early: the file is truncated or still being written"
        ) from None
    except WindowError as error:
        raise InputFileError(
            f"{path}: {error}, more than the limit of {max_window_bytes:,}: compress it without "
            "--long and --ultra, or raise ReaderConfig.max_window_bytes"
        ) from None
    except (FormatError, zstandard.ZstdError) as error:
        raise InputFileError(f"{path}: not a zstd file, or damaged: {error}") from error


class CutOffError(Exception):
    """The input ends in the middle of a frame."""


class FormatError(Exception):
    """The input is not valid zstd data."""


class WindowError(Exception):
    """A frame needs a larger window, and therefore more memory, than allowed."""

    def __init__(self, window_bytes: int) -> None:
        super().__init__(f"needs a zstd window of {window_bytes:,} bytes")
        self.window_bytes = window_bytes


class Piece(NamedTuple):
    """Some consecutive bytes of one frame, and the decompressor for that frame."""

    data: bytes
    begins_frame: bool


def zstd_pieces(
    file: IO[bytes], read_bytes: int, output_bytes: int, max_window_bytes: int
) -> Iterator[Piece]:
    """Yield the frames of the file in pieces that each decompress to at most `output_bytes`.

    A piece contains at least one block, even if that block is larger. Skippable frames are skipped,
    and the contents of blocks are not checked.

    Raises CutOffError, FormatError, WindowError, and any error from reading the file.
    """
    source = _Input(file, read_bytes)
    num_blocks = max(1, output_bytes // MAX_BLOCK_BYTES)
    is_first = True
    while not source.at_end():
        magic = source.take(4)
        number = struct.unpack("<I", magic)[0]
        if number & ~0xF == _SKIPPABLE_MAGIC:
            source.skip(struct.unpack("<I", source.take(4))[0])
        elif number == _MAGIC:
            yield from _frame(source, magic, num_blocks, max_window_bytes)
        else:
            raise FormatError(f"a frame starts with {magic.hex()}")
        is_first = False
    if is_first:
        raise CutOffError


def _frame(source: _Input, magic: bytes, num_blocks: int, max_window_bytes: int) -> Iterator[Piece]:
    descriptor = source.take(1)
    flags = descriptor[0]
    is_single_segment = bool(flags & 0x20)
    window = b"" if is_single_segment else source.take(1)
    dictionary_id = source.take(_DICTIONARY_ID_BYTES[flags & 3])
    size_bytes = _CONTENT_SIZE_BYTES[flags >> 6] or int(is_single_segment)
    content_size = source.take(size_bytes)
    window_bytes = _window_bytes(window) if window else _content_bytes(content_size)
    if window_bytes > max_window_bytes:
        raise WindowError(window_bytes)
    parts = [magic, descriptor, window, dictionary_id, content_size]
    begins_frame, blocks, is_last = True, 0, False
    while not is_last:
        header = source.take(3)
        word = int.from_bytes(header, "little")
        is_last, kind, size = bool(word & 1), word >> 1 & 3, word >> 3
        if kind == _RESERVED_BLOCK or size > MAX_BLOCK_BYTES:
            raise FormatError(f"a block has the header {header.hex()}")
        parts += [header, source.take(1 if kind == _RLE_BLOCK else size)]
        blocks += 1
        if is_last and flags & 4:
            parts.append(source.take(4))  # the checksum of the frame's content
        if is_last or blocks == num_blocks:
            yield Piece(b"".join(parts), begins_frame)
            parts, begins_frame, blocks = [], False, 0


def _window_bytes(descriptor: bytes) -> int:
    exponent, mantissa = descriptor[0] >> 3, descriptor[0] & 7
    base = 1 << (_MIN_WINDOW_LOG + exponent)
    return base + base // 8 * mantissa


def _content_bytes(field: bytes) -> int:
    size = int.from_bytes(field, "little")
    return size + 256 if len(field) == 2 else size


class _Input:
    """Reads a file in large blocks and hands out exact numbers of bytes."""

    def __init__(self, file: IO[bytes], read_bytes: int) -> None:
        self._file = file
        self._read_bytes = read_bytes
        self._data = b""
        self._at = 0

    def at_end(self) -> bool:
        return self._at == len(self._data) and not self._fill()

    def take(self, size: int) -> bytes:
        if self._at + size <= len(self._data):
            self._at += size
            return self._data[self._at - size : self._at]
        parts = []
        while size > 0:
            if self.at_end():
                raise CutOffError
            part = self._data[self._at : self._at + size]
            self._at += len(part)
            size -= len(part)
            parts.append(part)
        return b"".join(parts)

    def skip(self, size: int) -> None:
        while size > 0:
            if self.at_end():
                raise CutOffError
            step = min(size, len(self._data) - self._at)
            self._at += step
            size -= step

    def _fill(self) -> bool:
        self._data, self._at = self._file.read(self._read_bytes), 0
        return bool(self._data)
