"""The rows of a table as one sorted file.

Letters: N rows, D row width.

Rows come in any order and may be more than fit into memory. They are first written as they come
to scratch files beside the export. Then the keys alone are sorted in memory, and the values are
brought into that order piece by piece. Memory: 16 bytes a row and one piece; disk: twice the
table beside the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparsefleet.errors import InternalError
from sparsefleet.export.pending_export import PendingExport
from sparsefleet.export.quantization import (
    EncodedRows,
    QuantizationError,
    RowFormat,
    decode_rows,
    encode_rows,
)
from sparsefleet.export.row_layout import row_schema
from sparsefleet.store import Rows

__all__ = ["write_rows"]

_PIECE_ROWS = 1 << 16


def write_rows(
    pending: PendingExport,
    stem: str,
    chunks: Iterable[Rows],
    *,
    table: str,
    dim: int,
    row_format: RowFormat,
) -> tuple[Path, int, QuantizationError]:
    """Writes the rows of `chunks` sorted by key; the file, how many, and the error of the format.

    The file is an Arrow IPC file of one record batch, uncompressed: see docs/exporting.md.
    """
    path = pending.path(stem, "arrow")
    with ExitStack() as scratch:
        files = [_Scratch(pending.scratch(f"{stem}{part}"), scratch) for part in "abcdef"]
        unsorted, ordered = files[:3], files[3:]
        error = QuantizationError()
        for chunk in chunks:
            encoded = encode_rows(table, chunk.keys, chunk.values, row_format)
            if row_format != "float32":  # which has none, and may hold NaN and infinities
                error.add(chunk.values, decode_rows(encoded))
            _append(unsorted, chunk.keys, encoded)
        values_type = np.dtype(row_format)
        keys = unsorted[0].read(np.dtype(np.uint64), 1).reshape(-1)
        order = np.argsort(keys)
        for piece in _pieces(order):
            _append(ordered, keys[piece], _taken(unsorted, piece, values_type, dim))
        _write_file(path, ordered, row_schema(table, dim, row_format), values_type, dim)
    return path, len(order), error


class _Scratch:
    """A file of raw numbers, removed with the stack."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self._path = path
        stack.callback(path.unlink, missing_ok=True)
        self._file = stack.enter_context(path.open("wb"))

    def append(self, array: NDArray[Any]) -> None:
        self._file.write(np.ascontiguousarray(array).data)

    def read(self, dtype: np.dtype[Any], width: int) -> NDArray[Any]:
        """All of it, mapped: [N, width]."""
        self._file.flush()
        size = self._file.tell()
        if size == 0:
            return np.empty((0, width), dtype)
        return np.memmap(self._path, dtype, "r", shape=(size // (dtype.itemsize * width), width))


def _append(files: list[_Scratch], keys: NDArray[Any], rows: EncodedRows) -> None:
    files[0].append(keys)
    files[1].append(rows.values)
    if rows.scales is not None:
        files[2].append(rows.scales)


def _pieces(order: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    for begin in range(0, len(order), _PIECE_ROWS):
        yield order[begin : begin + _PIECE_ROWS]


def _taken(
    files: list[_Scratch], places: NDArray[np.int64], dtype: np.dtype[Any], dim: int
) -> EncodedRows:
    scales = files[2].read(np.dtype(np.float32), 1).reshape(-1)
    values = files[1].read(dtype, dim)[places]
    return EncodedRows(values, scales[places] if len(scales) else None)


def _write_file(
    path: Path, files: list[_Scratch], schema: pa.Schema, dtype: np.dtype[Any], dim: int
) -> None:
    keys = files[0].read(np.dtype(np.uint64), 1).reshape(-1)
    if len(keys) > 1 and not bool((keys[1:] > keys[:-1]).all()):
        raise InternalError(f"{path}: the store handed out a key twice")
    values = pa.FixedSizeListArray.from_arrays(
        pa.array(files[1].read(dtype, dim).reshape(-1)), type=schema.field("values").type
    )
    columns = [pa.array(keys), values]
    if "scale" in schema.names:
        columns.append(pa.array(files[2].read(np.dtype(np.float32), 1).reshape(-1)))
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
