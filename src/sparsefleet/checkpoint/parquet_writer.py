"""Writes Parquet files whose list columns have one width, at the speed of the disk.

General writers compute the levels of a list column value by value, which costs ten times the
copy itself. Here every list of a column is as long as the next, so the levels of a page depend
on its number of rows only: they are made once, and the values go out as they lie in memory. No
compression, no dictionary, no statistics. Any Parquet reader takes it.

Letters: N rows of a chunk, W width of a list column.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsefleet.checkpoint.thrift_compact import I32, Struct, Value, encode_struct, varint

__all__ = ["Column", "ParquetWriter"]

_MAGIC = b"PAR1"
_PAGE_BYTES = 1 << 20
_GROUP_BYTES = 16 << 20

# Numbers of the format: parquet.thrift.
_REQUIRED, _REPEATED = I32(0), I32(2)
_LIST = I32(3)
_PLAIN, _RLE = I32(0), I32(3)
_PHYSICAL = {"float32": I32(4), "uint32": I32(1), "uint64": I32(2)}
_CONVERTED = {"uint32": I32(13), "uint64": I32(14)}

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the file: numbers, or lists of `width` numbers each."""

    name: str
    dtype: str
    """float32, uint32 or uint64"""
    width: int | None = None
    """Numbers in each list, >= 1; None: no lists but plain numbers."""

    @property
    def row_bytes(self) -> int:
        return np.dtype(self.dtype).itemsize * (self.width or 1)

    def elements(self) -> list[Struct]:
        """Its part of the schema, which is a tree written from the top down."""
        leaf: dict[int, Value] = {
            1: _PHYSICAL[self.dtype],
            3: _REQUIRED,
            4: "element" if self.width else self.name,
        }
        if self.dtype in _CONVERTED:
            leaf[6] = _CONVERTED[self.dtype]
        if not self.width:
            return [leaf]
        outer: Struct = {3: _REQUIRED, 4: self.name, 5: I32(1), 6: _LIST}
        return [outer, {3: _REPEATED, 4: "list", 5: I32(1)}, leaf]

    def path(self) -> list[str]:
        return [self.name, "list", "element"] if self.width else [self.name]


@lru_cache(maxsize=64)
def _levels(rows: int, width: int) -> bytes:
    """Levels of a page of `rows` lists of `width`: where lists begin, and that none is empty."""
    starts = np.zeros((rows, width), np.uint8)
    starts[:, 1:] = 1  # repetition: 0 begins a list, 1 goes on with it
    bits = np.packbits(starts.reshape(-1), bitorder="little").tobytes()
    repetition = varint(len(bits) << 1 | 1) + bits
    definition = varint(rows * width << 1) + b"\x01"
    return b"".join(struct.pack("<I", len(part)) + part for part in (repetition, definition))


class ParquetWriter:
    """Writes rows, column by column, to `write`, which takes each piece of bytes in turn.

    Keeps at most 16 MiB of rows, by reference: arrays handed over must not change until then.
    Not thread-safe.
    """

    def __init__(
        self,
        write: Callable[[memoryview | bytes], object],
        columns: Sequence[Column],
        metadata: Mapping[str, str],
    ) -> None:
        self._write = write
        self._columns = list(columns)
        self._metadata = dict(metadata)
        self._row_bytes = sum(column.row_bytes for column in columns)
        self._groups: list[Struct] = []
        self._waiting: list[list[Array]] = []
        self._waiting_rows = 0
        self.num_rows = 0
        self.num_bytes = 0
        self._put(_MAGIC)

    def write(self, arrays: Sequence[Array]) -> None:
        """Adds rows: an array for each column, [N] or [N, W], of the column's dtype."""
        count = len(arrays[0])
        step = max(1, _GROUP_BYTES // self._row_bytes)
        for begin in range(0, count, step):
            part = [array[begin : begin + step] for array in arrays]
            self._waiting.append(part)
            self._waiting_rows += len(part[0])
            if self._waiting_rows * self._row_bytes >= _GROUP_BYTES // 2:
                self._write_group()

    def close(self) -> None:
        """Writes what is left and the footer; the sink stays open."""
        self._write_group()
        schema: list[Struct] = [{4: "schema", 5: I32(len(self._columns))}]
        for column in self._columns:
            schema += column.elements()
        footer = encode_struct(
            {
                1: I32(1),
                2: schema,
                3: self.num_rows,
                4: self._groups,
                5: [{1: key, 2: value} for key, value in self._metadata.items()],
                6: "sparsefleet",
            }
        )
        self._put(footer + struct.pack("<I", len(footer)) + _MAGIC)

    def _put(self, data: memoryview | bytes) -> None:
        self._write(data)
        self.num_bytes += len(data)

    def _write_group(self) -> None:
        if not self._waiting_rows:
            return
        begin = self.num_bytes
        chunks: list[Struct] = [
            self._write_column(column, [part[place] for part in self._waiting])
            for place, column in enumerate(self._columns)
        ]
        self._groups.append({1: chunks, 2: self.num_bytes - begin, 3: self._waiting_rows})
        self.num_rows += self._waiting_rows
        self._waiting, self._waiting_rows = [], 0

    def _write_column(self, column: Column, parts: Sequence[Array]) -> Struct:
        begin = self.num_bytes
        step = max(1, _PAGE_BYTES // column.row_bytes)
        for part in parts:
            for first in range(0, len(part), step):
                self._write_page(column, part[first : first + step])
        size = self.num_bytes - begin
        described: Struct = {
            1: _PHYSICAL[column.dtype],
            2: [_PLAIN, _RLE],
            3: column.path(),
            4: I32(0),  # not compressed
            5: self._waiting_rows * (column.width or 1),
            6: size,
            7: size,
            9: begin,
        }
        return {2: begin, 3: described}

    def _write_page(self, column: Column, rows: Array) -> None:
        little_endian = np.dtype(column.dtype).newbyteorder("<")
        values = np.ascontiguousarray(rows, little_endian)
        levels = _levels(len(rows), column.width) if column.width else b""
        size = I32(len(levels) + values.nbytes)
        layout = {1: I32(values.size), 2: _PLAIN, 3: _RLE, 4: _RLE}
        header = encode_struct({1: I32(0), 2: size, 3: size, 5: layout})
        self._put(header + levels)
        self._put(values.reshape(-1).data.cast("B"))
