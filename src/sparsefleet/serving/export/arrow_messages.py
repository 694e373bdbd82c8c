"""Read the metadata of Arrow IPC messages, to check it before any buffer is read."""

from __future__ import annotations

import struct

__all__ = ["is_compressed"]

# Flatbuffers of Arrow's format/Message.fbs. Message: version is field 0, header_type field 1,
# header field 2, custom_metadata field 4; RecordBatch: compression is field 3.
_RECORD_BATCH, _DICTIONARY_BATCH = 3, 2
_VERSION, _HEADER_TYPE, _HEADER, _CUSTOM_METADATA = 0, 1, 2, 4
_COMPRESSION = 3
_V5 = 4


def is_compressed(metadata: bytes) -> bool:
    """Return whether a message holds a record batch with compressed buffers.

    A few compressed bytes could expand to any number of rows in memory. Raises ValueError for
    damaged metadata and for dictionaries, which can also expand.
    """
    try:
        message = struct.unpack_from("<I", metadata, 0)[0]
        at = _field(metadata, message, _HEADER_TYPE)
        kind = metadata[at] if at else 0
        if kind == _DICTIONARY_BATCH:
            raise ValueError("dictionaries are not supported")
        at = _field(metadata, message, _HEADER)
        if kind != _RECORD_BATCH or not at:
            return False
        batch = at + struct.unpack_from("<I", metadata, at)[0]
        return _field(metadata, batch, _COMPRESSION) != 0 or _has_old_notes(metadata, message)
    except (struct.error, IndexError) as error:
        raise ValueError("a message is truncated") from error


def _has_old_notes(metadata: bytes, message: int) -> bool:
    """Return whether a message before version 5 has notes, where Arrow 0.17 named the codec."""
    at = _field(metadata, message, _VERSION)
    version = struct.unpack_from("<h", metadata, at)[0] if at else 0
    return version < _V5 and _field(metadata, message, _CUSTOM_METADATA) != 0


def _field(raw: bytes, table: int, index: int) -> int:
    """Return the position of field `index` in the flatbuffer table, or 0 if it is absent."""
    vtable = table - struct.unpack_from("<i", raw, table)[0]
    size = struct.unpack_from("<H", raw, vtable)[0]
    place = 4 + 2 * index
    if place + 2 > size:
        return 0
    offset: int = struct.unpack_from("<H", raw, vtable + place)[0]
    return table + offset if offset else 0
