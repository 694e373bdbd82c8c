"""Rows and keys as Redis has them.

Letters: N rows, D row width.

Format: a key is 8 bytes, little-endian. A row is its D values in the format of the export,
little-endian; in int8 after a scale, float32.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sparsefleet.errors import CorruptFileError
from sparsefleet.export.manifest import TableEntry
from sparsefleet.export.quantization import EncodedRows, decode_rows
from sparsefleet.store.arrays import Floats, Keys

__all__ = ["keys_to_bytes", "row_size", "rows_from_bytes", "rows_to_bytes"]


def row_size(entry: TableEntry) -> int:
    """Bytes of a row."""
    scale = 4 if entry.format == "int8" else 0
    return scale + entry.dim * np.dtype(entry.format).itemsize


def keys_to_bytes(keys: Keys) -> list[bytes]:
    """
    >>> keys_to_bytes(np.array([1, 256], np.uint64))
    [b'\\x01\\x00\\x00\\x00\\x00\\x00\\x00\\x00', b'\\x00\\x01\\x00\\x00\\x00\\x00\\x00\\x00']
    """
    return _cut(keys.astype("<u8").tobytes(), 8)


def rows_to_bytes(rows: EncodedRows) -> list[bytes]:
    """Each row of N as bytes."""
    values = np.ascontiguousarray(rows.values.astype(rows.values.dtype.newbyteorder("<")))
    raw = values.view(np.uint8).reshape(len(values), -1)
    if rows.scales is not None:
        scales = np.ascontiguousarray(rows.scales.astype("<f4")).view(np.uint8)
        raw = np.concatenate([scales.reshape(len(values), 4), raw], axis=1)
    return _cut(raw.tobytes(), raw.shape[1])


def rows_from_bytes(
    entry: TableEntry, keys: Keys, found: Sequence[bytes | None]
) -> tuple[Floats, NDArray[np.bool_]]:
    """Rows as they read, float32[N, D], zeros where there is none; and where there is one."""
    size = row_size(entry)
    known = np.array([row is not None for row in found], np.bool_)
    there = [row for row in found if row is not None]
    if any(len(row) != size for row in there):
        _raise_wrong_size(entry, keys, found, size)
    raw = b"".join(there)
    rows = np.zeros((len(found), entry.dim), np.float32)
    split = np.frombuffer(raw, np.uint8).reshape(-1, size)
    begin = 4 if entry.format == "int8" else 0
    dtype = np.dtype(entry.format).newbyteorder("<")
    values = np.ascontiguousarray(split[:, begin:]).view(dtype)
    scales = np.ascontiguousarray(split[:, :begin]).view("<f4").reshape(-1) if begin else None
    rows[known] = decode_rows(EncodedRows(values, scales))
    return rows, known


def _raise_wrong_size(
    entry: TableEntry, keys: Keys, found: Sequence[bytes | None], size: int
) -> None:
    for key, row in zip(keys, found, strict=True):
        if row is not None and len(row) != size:
            raise CorruptFileError(
                f"table '{entry.name}': the row of key {int(key)} has {len(row)} bytes in Redis, "
                f"wanted {size}: push the version again"
            )


def _cut(raw: bytes, size: int) -> list[bytes]:
    return [raw[at : at + size] for at in range(0, len(raw), size)]
