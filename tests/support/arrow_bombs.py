"""Arrow messages whose compression is announced as Arrow 0.17 did, which readers still follow."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pyarrow as pa

__all__ = ["compressed_as_by_0_17"]

_HEADER, _COMPRESSION = 2, 3


def compressed_as_by_0_17(batch: pa.RecordBatch, new: Callable[..., Any]) -> bytes:
    """Return a stream or file (`new`: pa.ipc.new_stream or new_file) with zstd buffers.

    The record batch does not name the codec; the notes of its message do.
    """
    old = pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V4, compression="zstd")
    sink = pa.BufferOutputStream()
    with new(sink, batch.schema, options=old) as writer:
        writer.write_batch(batch, custom_metadata={"ARROW:experimental_compression": "ZSTD"})
    raw = bytearray(sink.getvalue().to_pybytes())
    file = pa.BufferReader(bytes(raw))
    file.seek(8 if raw.startswith(b"ARROW1") else 0)
    messages = pa.ipc.MessageReader.open_stream(file)
    messages.read_next_message()  # the schema
    metadata = messages.read_next_message().metadata.to_pybytes()
    message = struct.unpack_from("<I", metadata, 0)[0]
    header = message + _offset(metadata, message, _HEADER)[1]
    table = header + struct.unpack_from("<I", metadata, header)[0]
    place = _offset(metadata, table, _COMPRESSION)[0]
    struct.pack_into("<H", raw, raw.index(metadata) + place, 0)
    return bytes(raw)


def _offset(raw: bytes, table: int, field: int) -> tuple[int, int]:
    """Return where the offset of a flatbuffer field is stored, and the offset."""
    place = table - struct.unpack_from("<i", raw, table)[0] + 4 + 2 * field
    return place, struct.unpack_from("<H", raw, place)[0]
