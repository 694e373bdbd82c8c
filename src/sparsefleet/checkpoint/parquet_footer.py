"""Read compression codecs from the footer of a Parquet file, without Arrow.

Arrow aborts the process if Python asks for a codec that it does not know, so a damaged or hostile
file must be checked before that. The footer is a struct in Thrift's compact protocol.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

__all__ = ["KNOWN_CODECS", "codecs_of"]

KNOWN_CODECS: Final = range(8)  # UNCOMPRESSED to LZ4_RAW in parquet.thrift

_CODEC_PATH: Final = (4, 1, 3, 4)  # row groups, columns, meta_data, codec
_MAX_DEPTH: Final = 32

# Types of the compact protocol
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)


def codecs_of(file: Any) -> set[int]:
    """Return the codecs of all column chunks. Raises ValueError if the footer cannot be parsed.

    file: a file object open for reading; its position changes.
    """
    size = file.seek(0, 2)
    file.seek(max(size - 8, 0))
    tail = file.read(8)
    length = int.from_bytes(tail[:4], "little")
    if len(tail) < 8 or tail[4:] != b"PAR1" or length + 8 > size:
        raise ValueError("no footer of a Parquet file")
    file.seek(size - 8 - length)
    try:
        return set(_Footer(file.read(length)).codecs())
    except IndexError:
        raise ValueError("the footer ends too early") from None


class _Footer:
    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def codecs(self) -> Iterator[int]:
        return self._walk_struct((), 0)

    def _walk_struct(self, path: tuple[int, ...], depth: int) -> Iterator[int]:
        field = 0
        while header := self._take():
            field = field + (header >> 4) if header >> 4 else self._zigzag()
            kind = header & 15
            if kind not in (_TRUE, _FALSE):  # the type of a field is its value
                yield from self._walk(kind, (*path, field), depth + 1)

    def _walk(self, kind: int, path: tuple[int, ...], depth: int) -> Iterator[int]:
        if depth > _MAX_DEPTH:
            raise ValueError(f"the footer is nested more than {_MAX_DEPTH} levels deep")
        if kind in (_I16, _I32, _I64):
            value = self._zigzag()
            if path == _CODEC_PATH:
                yield value
        elif kind == _STRUCT:
            yield from self._walk_struct(path, depth)
        elif kind in (_LIST, _SET):
            header = self._take()
            count = header >> 4 if header >> 4 < 15 else self._varint()
            for _ in range(count):
                yield from self._walk(header & 15, path, depth + 1)
        elif kind == _MAP:
            count = self._varint()
            kinds = self._take() if count else 0
            for _ in range(count):
                yield from self._walk(kinds >> 4, path, depth + 1)
                yield from self._walk(kinds & 15, path, depth + 1)
        elif kind == _BINARY:
            self._skip(self._varint())
        elif kind == _DOUBLE:
            self._skip(8)
        elif kind in (_TRUE, _FALSE, _BYTE):
            self._skip(1)
        else:
            raise ValueError(f"the footer has a value of the unknown type {kind}")

    def _take(self) -> int:
        value = self._content[self._at]
        self._at += 1
        return value

    def _skip(self, count: int) -> None:
        if count > len(self._content) - self._at:
            raise IndexError
        self._at += count

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._take()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
            if shift > 63:
                raise ValueError("the footer has an integer of more than 64 bits")

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)
