"""Use Arrow to read files of keys and vectors written by other programs.

In shapes, N is the number of rows in a chunk, D the number of values in a row.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from sparsefleet.checkpoint.row_chunk import RowChunk
from sparsefleet.errors import ConfigError, InputFileError, InputMissingError

__all__ = ["read_vectors"]

_BATCH_ROWS = 1 << 16
_NUMBER = re.compile(r"[\s\[]*[-+]?[\d.][\d.eE+\-,;|\s]*\]?\s*")
_CSV_BLOCK_BYTES = 8 << 20


def read_vectors(
    path: str,
    *,
    is_csv: bool,
    key_column: str | None,
    has_header: bool,
    storage_options: Mapping[str, Any] | None,
) -> Iterator[RowChunk]:
    """Yield the rows of a CSV or Parquet file; `import_table` explains the arguments."""
    width: int | None = None
    with (
        _reported(path),
        fsspec.open(path, "rb", compression="infer", **(storage_options or {})) as file,
    ):
        if is_csv and has_header:
            _refuse_numbers(path, _csv_names(file))
        tables = _read_csv(file, key_column, has_header) if is_csv else _read_parquet(file)
        for table in tables:
            chunk = _to_chunk(table, key_column, path)
            found = chunk.values.shape[1]
            width = found if width is None else width
            if found != width:
                raise InputFileError(f"{path}: expected {width} values per row, found {found}")
            if len(chunk.keys):
                yield chunk


@contextmanager
def _reported(path: str) -> Iterator[None]:
    """Convert errors from file systems and Arrow to errors that name the file."""
    try:
        yield
    except (InputFileError, ConfigError):
        raise
    except FileNotFoundError as error:
        raise InputMissingError(f"{path}: no such file") from error
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputFileError(f"{path}: cannot be read: {error}") from error


def _read_parquet(file: IO[bytes]) -> Iterator[pa.Table]:
    for batch in pq.ParquetFile(file).iter_batches(_BATCH_ROWS, use_threads=False):
        yield pa.Table.from_batches([batch])


def _read_csv(file: IO[bytes], key_column: str | None, has_header: bool) -> Iterator[pa.Table]:
    """Open a CSV file, reading keys as text, because numbers above 2^63 would become floats."""
    names = _csv_names(file) if has_header else None
    options = pa.csv.ReadOptions(
        block_size=_CSV_BLOCK_BYTES, autogenerate_column_names=not has_header, use_threads=False
    )
    key = _key_name(names, key_column) if names else "f0"
    convert = pa.csv.ConvertOptions(column_types={key: pa.string()}, strings_can_be_null=False)
    for batch in pa.csv.open_csv(file, read_options=options, convert_options=convert):
        yield pa.Table.from_batches([batch])


def _csv_names(file: IO[bytes]) -> list[str]:
    head = file.readline(_CSV_BLOCK_BYTES)
    if len(head) == _CSV_BLOCK_BYTES:
        raise ValueError(f"the first line has {_CSV_BLOCK_BYTES:,} bytes or more")
    names: list[str] = pa.csv.read_csv(pa.py_buffer(head)).column_names
    file.seek(0)
    return names


def _refuse_numbers(path: str, names: list[str]) -> None:
    """Raise if the first line contains only numbers.

    Using that line as the header would lose a row.
    """
    if all(_NUMBER.fullmatch(name) for name in names):
        raise InputFileError(
            f"{path}: expected column names in the first line, found numbers "
            f"({', '.join(names)[:80]}); if the file has no header, use has_header=False"
        )


def _key_name(names: list[str], key_column: str | None) -> str:
    if key_column is None:
        return "key" if "key" in names else names[0]
    if key_column not in names:
        raise ConfigError(f"key_column must be one of {names}, got {key_column!r}")
    return key_column


def _to_chunk(table: pa.Table, key_column: str | None, path: str) -> RowChunk:
    name = _key_name(table.column_names, key_column)
    keys = _to_keys(table[name], path)
    values = _to_values(table.drop_columns(name), path)
    count = len(keys)
    return RowChunk(keys, values, np.empty((count, 0), np.float32), np.empty((count, 0), np.uint32))


def _to_keys(column: pa.ChunkedArray, path: str) -> NDArray[np.uint64]:
    if column.null_count:
        raise InputFileError(f"{path}: expected a key in each row, found rows without a key")
    if pa.types.is_string(column.type):
        column = pc.utf8_trim_whitespace(column)
        is_negative = pc.any(pc.starts_with(column, "-")).as_py()
        column = column.cast(pa.int64() if is_negative else pa.uint64())
    if not pa.types.is_integer(column.type):
        raise InputFileError(f"{path}: expected whole numbers as keys, found {column.type}")
    is_signed = pa.types.is_signed_integer(column.type)
    numbers = column.cast(pa.int64() if is_signed else pa.uint64()).to_numpy()
    keys: NDArray[np.uint64] = numbers.view(np.uint64).copy()
    return keys


def _to_values(table: pa.Table, path: str) -> NDArray[np.float32]:
    if not table.num_columns:
        raise InputFileError(f"{path}: expected values next to the key, found no other column")
    empty = [name for name in table.column_names if table[name].null_count]
    if empty:
        raise InputFileError(
            f"{path}: expected a value in each row, found none in some rows of column {empty[0]!r}"
        )
    first = table.column(0).combine_chunks()
    if table.num_columns == 1 and pa.types.is_string(first.type):
        first = _split_text(first)
    if table.num_columns == 1 and not pa.types.is_primitive(first.type):
        return _from_lists(first, path)
    kinds = {str(kind) for kind in table.schema.types if not pa.types.is_primitive(kind)}
    if kinds:
        raise InputFileError(
            f"{path}: expected numbers or one column of lists, found {sorted(kinds)}"
        )
    columns = [column.cast(pa.float32(), safe=False).to_numpy() for column in table.columns]
    return np.stack(columns, axis=1)


def _split_text(column: pa.Array) -> pa.Array:
    """Parse texts such as `[0.5, 0.25]`, `0.5 0.25` or `0.5;0.25` as lists."""
    bare = pc.replace_substring_regex(column, r"^[\s\[\(]+|[\s\]\)]+$", "")
    return pc.split_pattern_regex(bare, r"[\s,;|]+")


def _from_lists(column: pa.Array, path: str) -> NDArray[np.float32]:
    kind = column.type
    if not (
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    ):
        raise InputFileError(f"{path}: expected numbers or one column of lists, found {kind}")
    lengths = pc.list_value_length(column).to_numpy(zero_copy_only=False)
    flat = column.flatten()
    if len(lengths) and (lengths.min() != lengths.max() or not lengths[0] or flat.null_count):
        raise InputFileError(
            f"{path}: expected rows of equal length, found {lengths.min()} to {lengths.max()}"
        )
    width = int(lengths[0]) if len(lengths) else 1
    values: NDArray[np.float32] = flat.cast(pa.float32(), safe=False).to_numpy(zero_copy_only=False)
    return values.reshape(-1, width)
