"""Records as bytes, for another worker. Letters: B records, N values.

Format, little-endian, arrays begin at multiples of 8 bytes:

    block  = magic "SFRB", version u16, columns u16, sender u32, number u32, B u64,
             per column (dtype u8, bytes of a length u8, 0 u16, 0 u32, N u64), then its arrays
    arrays = lengths unsigned[B] of a slot without shape, values of dtype[N]
    end    = magic "SFRE", version u16, 0 u16, sender u32, blocks u32, records u64
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparsefleet.data.memory_columns import CompactColumn
from sparsefleet.data.memory_records import num_records_of
from sparsefleet.data.slot import Slot
from sparsefleet.errors import ProtocolError

_VERSION = 1
_HEAD = struct.Struct("<4sHHIIQ")
_COLUMN = struct.Struct("<BBHIQ")
_BLOCK_MAGIC = b"SFRB"
_END_MAGIC = b"SFRE"
_DTYPES = (np.dtype("<i8"), np.dtype("<f4"), np.dtype("u1"))
_CODES = {"uint64": 0, "float": 1, "text": 2}


class RecordBlock(NamedTuple):
    """Records that one worker sent another; its blocks to that worker are numbered from 0."""

    sender: int
    number: int
    columns: list[CompactColumn]


class EndOfRecords(NamedTuple):
    """All that the sender had for this worker."""

    sender: int
    num_blocks: int
    num_records: int


def pack_block(block: RecordBlock) -> bytes:
    """The block as bytes."""
    num_records = num_records_of(block.columns)
    head = _HEAD.pack(
        _BLOCK_MAGIC, _VERSION, len(block.columns), block.sender, block.number, num_records
    )
    kinds = []
    arrays: list[NDArray[Any]] = []
    for values, lengths in block.columns:
        length_bytes = 0 if lengths is None else lengths.itemsize
        kinds.append(_COLUMN.pack(_DTYPES.index(values.dtype), length_bytes, 0, 0, values.size))
        if lengths is not None:
            arrays.append(lengths)
        arrays.append(values)
    parts = [head, *kinds]
    for array in arrays:
        parts += [array.tobytes(), bytes(-array.nbytes % 8)]
    return b"".join(parts)


def pack_end(end: EndOfRecords) -> bytes:
    """The message as bytes."""
    return _HEAD.pack(_END_MAGIC, _VERSION, 0, end.sender, end.num_blocks, end.num_records)


def unpack(data: bytes, slots: Sequence[Slot]) -> RecordBlock | EndOfRecords:
    """What was packed; ProtocolError unless it is whole and has the columns of `slots`.

    Values are views of `data`.
    """
    if len(data) < _HEAD.size:
        raise ProtocolError(f"a block of records has {_HEAD.size} bytes at least, got {len(data)}")
    magic, version, num_columns, sender, number, count = _HEAD.unpack_from(data)
    if magic not in (_BLOCK_MAGIC, _END_MAGIC) or version != _VERSION:
        raise ProtocolError(
            f"a block of records begins with {_BLOCK_MAGIC!r} and version {_VERSION}, got "
            f"{magic!r} and {version}: all workers must run the same version"
        )
    if magic == _END_MAGIC:
        return EndOfRecords(sender, number, count)
    if num_columns != len(slots):
        raise ProtocolError(f"worker {sender} sent {num_columns} columns, here are {len(slots)}")
    begin = _HEAD.size + num_columns * _COLUMN.size
    if len(data) < begin:
        raise ProtocolError(f"worker {sender} sent {len(data)} bytes, too few for {begin} of head")
    reader = _ArrayReader(data, begin, sender)
    columns = []
    for index, slot in enumerate(slots):
        code, length_bytes, _, _, num_values = _COLUMN.unpack_from(
            data, _HEAD.size + index * _COLUMN.size
        )
        _check_column(slot, sender, (code, length_bytes), num_values, count)
        lengths = None
        if slot.shape is None:
            lengths = reader.take_lengths(slot, length_bytes, count, num_values)
        values = reader.take(_DTYPES[code], num_values)
        columns.append((values if lengths is not None else values.reshape(-1, slot.width), lengths))
    reader.finish()
    return RecordBlock(sender, number, columns)


class _ArrayReader:
    """Arrays one after the other; none reaches beyond the data."""

    def __init__(self, data: bytes, begin: int, sender: int) -> None:
        self._data = data
        self._at = begin
        self._sender = sender

    def take_lengths(
        self, slot: Slot, length_bytes: int, num_records: int, num_values: int
    ) -> NDArray[Any]:
        lengths = self.take(np.dtype(f"<u{length_bytes}"), num_records)
        total = int(lengths.sum(dtype=np.uint64))
        if total != num_values:
            raise ProtocolError(
                f"worker {self._sender} sent {num_values} values of slot '{slot.name}', but their "
                f"lengths add up to {total}"
            )
        return lengths

    def finish(self) -> None:
        if self._at != len(self._data):
            raise ProtocolError(
                f"worker {self._sender} sent {len(self._data)} bytes, the columns end at {self._at}"
            )

    def take(self, dtype: np.dtype[Any], count: int) -> NDArray[Any]:
        num_bytes = count * dtype.itemsize
        if num_bytes > len(self._data) - self._at:
            raise ProtocolError(
                f"worker {self._sender} sent {len(self._data)} bytes, too few for its columns"
            )
        array = np.frombuffer(self._data, dtype, count, self._at)
        self._at = min(self._at + num_bytes + -num_bytes % 8, len(self._data))
        return array


def _check_column(
    slot: Slot, sender: int, kind: tuple[int, int], num_values: int, num_records: int
) -> None:
    code, length_bytes = kind
    is_ragged = slot.shape is None
    fits = is_ragged or num_values == num_records * slot.width
    of_kind = code == _CODES[slot.dtype] and length_bytes in ((1, 2, 4) if is_ragged else (0,))
    if not (fits and of_kind):
        raise ProtocolError(
            f"worker {sender} sent another kind of values for slot '{slot.name}' than is declared "
            "here: all workers must declare the same slots"
        )
