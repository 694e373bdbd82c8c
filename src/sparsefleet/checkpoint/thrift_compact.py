"""The few parts of Thrift's compact protocol that the metadata of a Parquet file needs.

A struct is a dict {field number: value}; the value's Python type decides its Thrift type: bool,
I32, int (i64), str, a dict (struct) or a list of I32, str or dicts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias, Union

__all__ = ["I32", "Struct", "Value", "encode_struct", "varint"]


class I32(int):
    """An int whose Thrift type is i32, as those of enums are; a plain int is an i64."""


Value: TypeAlias = Union[bool, int, str, "Struct", Sequence["Value"]]
Struct: TypeAlias = Mapping[int, Value]

_TRUE, _FALSE, _I32, _I64, _BINARY, _LIST, _STRUCT = 1, 2, 5, 6, 8, 9, 12


def varint(number: int) -> bytes:
    """LEB128: seven bits a byte, least first."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def encode_struct(struct: Struct) -> bytes:
    """The struct's bytes, with the stop byte.

    >>> encode_struct({1: I32(5), 3: "ab"}).hex()
    '150a2802616200'

    """
    out = bytearray()
    last = 0
    for number, value in sorted(struct.items()):
        kind = _kind_of(value)
        step = number - last
        if 1 <= step <= 15:
            out.append(step << 4 | kind)
        else:
            out.append(kind)
            out += varint(_zigzag(number))
        if kind not in (_TRUE, _FALSE):
            out += _encode(value)
        last = number
    out.append(0)
    return bytes(out)


def _kind_of(value: Value) -> int:
    if isinstance(value, bool):
        return _TRUE if value else _FALSE
    if isinstance(value, I32):
        return _I32
    if isinstance(value, int):
        return _I64
    if isinstance(value, str):
        return _BINARY
    return _STRUCT if isinstance(value, Mapping) else _LIST


def _zigzag(number: int) -> int:
    return number << 1 if number >= 0 else (-number << 1) - 1


def _encode(value: Value) -> bytes:
    if isinstance(value, int):
        return varint(_zigzag(value))
    if isinstance(value, str):
        data = value.encode("utf-8")
        return varint(len(data)) + data
    if isinstance(value, Mapping):
        return encode_struct(value)
    kind = _kind_of(value[0]) if value else _STRUCT
    size = len(value)
    head = bytes([size << 4 | kind]) if size < 15 else bytes([0xF0 | kind]) + varint(size)
    return head + b"".join(map(_encode, value))
