"""Read examples from files and write predictions to files: Parquet, CSV and JSON.

Each column is named after an input. An input with several values per example is a list or, in CSV,
numbers separated by spaces.

In shapes, B is the number of examples.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from sparsefleet.errors import ConfigError, FeedError, InputFileError, InputMissingError
from sparsefleet.serving.export.hashing import STRINGS_NEED_FEATURES, hash_column
from sparsefleet.serving.export.manifest import InputSchema, Schema

__all__ = [
    "input_of_column",
    "is_list",
    "predictions_as_text",
    "read_csv",
    "read_examples",
    "read_inputs",
    "read_table",
    "write_predictions",
]

_SUFFIXES = (".parquet", ".csv", ".json", ".jsonl")


def read_examples(path: Path, schema: Schema, batch: int) -> Iterator[dict[str, Any]]:
    """Yield the inputs of up to `batch` examples at a time, in the form `Predictor.predict`
    takes.
    """
    table = read_table(path, schema)
    for begin in range(0, max(len(table), 1), batch):
        yield read_inputs(path, table.slice(begin, batch), schema)


def read_inputs(path: Path, table: pa.Table, schema: Schema) -> dict[str, Any]:
    """Return the inputs in the columns of `table`, in the form `Predictor.predict` takes."""
    for item in schema.inputs:
        if item.name not in table.column_names:
            raise FeedError(
                f"{path} has no column '{item.name}'; it has {', '.join(table.column_names)}"
            )
        if table.column_names.count(item.name) > 1:
            raise FeedError(f"{path} has more than one column '{item.name}'")
    return {item.name: _input_of(path, table, item, schema) for item in schema.inputs}


def _input_of(path: Path, table: pa.Table, item: InputSchema, schema: Schema) -> Any:
    column = table.column(item.name)
    try:
        return input_of_column(column.combine_chunks(), item, schema)
    except (pa.ArrowException, ValueError) as error:
        hint, is_text = "", "string" in str(column.type)
        if is_text and item.dtype == "int64" and schema.hashing(item.name) is None:
            hint = f"; {STRINGS_NEED_FEATURES}"
        raise FeedError(f"{path}, column '{item.name}': {error}; expected {item}{hint}") from error


def write_predictions(path: Path, predictions: Mapping[str, NDArray[Any]]) -> None:
    """Write a file with one column per target and one row per example.

    The suffix of `path` selects the format.
    """
    check_suffix(path)
    columns = {name: array.tolist() for name, array in predictions.items()}
    if path.suffix == ".parquet":
        arrays = {
            name: pa.array(columns[name], _column_type(array))
            for name, array in predictions.items()
        }
        pyarrow.parquet.write_table(pa.table(arrays), path)
    elif path.suffix == ".csv":
        path.write_text(predictions_as_text(predictions), encoding="utf-8")
    else:
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        lines = "\n".join(map(json.dumps, rows))
        text = lines if path.suffix == ".jsonl" else json.dumps(rows, indent=1)
        path.write_text(text + "\n", encoding="utf-8")


def _column_type(array: NDArray[Any]) -> pa.DataType:
    """Return the Arrow type of one example (a number or nested lists); `array` may be empty."""
    kind = pa.from_numpy_dtype(array.dtype)
    for _ in array.shape[1:]:
        kind = pa.list_(kind)
    return kind


def predictions_as_text(predictions: Mapping[str, NDArray[Any]]) -> str:
    """Return the predictions as CSV text.

    >>> print(predictions_as_text({"p": np.array([0.5, 0.25])}), end="")
    p
    0.5
    0.25
    """
    cells = [[" ".join(map(str, np.ravel(row))) for row in array] for array in predictions.values()]
    lines = [",".join(predictions), *(",".join(row) for row in zip(*cells, strict=True))]
    return "\n".join(lines) + "\n"


def check_suffix(path: Path) -> None:
    """Raise ConfigError unless the suffix names a supported format."""
    if path.suffix not in _SUFFIXES:
        raise ConfigError(f"{path} must end with one of {', '.join(_SUFFIXES)}")


def read_table(path: Path, schema: Schema) -> pa.Table:
    """Read all columns of an example file; in CSV, inputs with several values are lists of text."""
    check_suffix(path)
    try:
        if path.suffix == ".parquet":
            return pyarrow.parquet.read_table(path)
        if path.suffix == ".csv":
            return read_csv(path, schema)
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines() if path.suffix == ".jsonl" else []
        rows = [json.loads(line) for line in lines if line.strip()] if lines else json.loads(text)
        return _table_of(rows, schema)
    except FileNotFoundError as error:
        raise InputMissingError(f"{path}: no such file") from error
    except RecursionError:
        raise InputFileError(f"{path} cannot be read: it is nested too deeply") from None
    except (OSError, ValueError, TypeError, OverflowError, pa.ArrowException) as error:
        raise InputFileError(f"{path} cannot be read as {path.suffix[1:]}: {error}") from error


def _table_of(rows: Any, schema: Schema) -> pa.Table:
    """Convert parsed JSON to a table. Raises ValueError unless it is a list of objects."""
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError("expected a list of objects, one per example")
    ids = [item.name for item in schema.inputs if item.dtype == "int64"]
    signed = [{name: _signed(row[name]) for name in ids if name in row} for row in rows]
    return pa.Table.from_pylist([{**row, **keys} for row, keys in zip(rows, signed, strict=True)])


def _signed(value: Any) -> Any:
    """Reinterpret an unsigned 64-bit key, or nested lists of keys, as signed, bit for bit."""
    if type(value) is list:
        return [_signed(one) for one in value]
    return value - 2**64 if type(value) is int and 2**63 <= value < 2**64 else value


def read_csv(source: Path | BinaryIO, schema: Schema) -> pa.Table:
    """Read the columns of a CSV file; inputs with several values become lists of text.

    Cells of hashed inputs are strings, even if they look like numbers. As in the reader, an empty
    cell is missing if there is an id for missing values, and is hashed otherwise.
    """
    lists = {item.name for item in schema.inputs if item.is_ragged or len(item.shape) > 1}
    options = pyarrow.csv.ConvertOptions(
        column_types={name: pa.string() for name in lists | {x.input for x in schema.hashed}},
        strings_can_be_null=False,
    )
    table = pyarrow.csv.read_csv(source, convert_options=options)
    for name in (item.name for item in schema.inputs):
        if table.column_names.count(name) > 1:
            raise ValueError(f"the first line names '{name}' more than once")
    for item in schema.hashed:
        is_single = item.input in table.column_names and item.input not in lists
        if is_single and item.missing is not None:
            place, cells = table.column_names.index(item.input), table.column(item.input)
            filled = pc.if_else(pc.equal(cells, ""), pa.scalar(None, pa.string()), cells)
            table = table.set_column(place, item.input, filled)
    for name in lists.intersection(table.column_names):
        cells = table.column(name).to_pylist()
        hashed = schema.hashing(name)
        separator = (hashed.separator if hashed else "") or None
        texts = [cell.split(separator) if cell else [] for cell in cells]
        lists_of_text = pa.array(texts, pa.list_(pa.string()))
        table = table.set_column(table.column_names.index(name), name, lists_of_text)
    return table


def input_of_column(column: pa.Array, item: InputSchema, schema: Schema) -> Any:
    """Convert a column to an input of `Predictor.predict`. Raises ValueError or ArrowException.

    schema: says how strings become ids, and what replaces missing values.
    """
    hashed, filling = schema.hashing(item.name), schema.filling(item.name)
    if hashed is not None and not is_list(column.type):
        column = hash_column(column, hashed, 1)
    if filling is not None and not is_list(column.type):
        column = _fill(column, filling)
    if column.null_count:
        row = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise ValueError(f"{column.null_count} examples have no value; the first is in row {row}")
    if item.is_ragged:
        offsets = _offsets(column)
        flat = column.flatten() if hashed is None else hash_column(column.flatten(), hashed, 0)
        flat = flat if filling is None else _fill(flat, filling)
        return _numbers(flat, item.dtype), offsets if item.is_closed else offsets[:-1]
    if not item.shape or item.shape[0] != "batch":
        raise ValueError("this input does not have one value per example")
    flat = column
    while is_list(flat.type):
        flat = flat.flatten()
    sizes = [size for size in item.shape[1:] if isinstance(size, int)]
    if hashed is not None:
        flat = hash_column(flat, hashed, math.prod(sizes))
    if filling is not None:
        flat = _fill(flat, filling)
    if len(sizes) == len(item.shape) - 1 and len(flat) != len(column) * math.prod(sizes):
        raise ValueError(f"{len(column)} examples have {len(flat)} values")
    numbers = _numbers(flat, item.dtype)
    if len(item.shape) > 1:
        lengths = set(np.diff(_offsets(column)).tolist())
        if len(lengths) > 1:
            raise ValueError(f"examples have between {min(lengths)} and {max(lengths)} values")
    tail = [size if isinstance(size, int) else -1 for size in item.shape[1:]]
    return numbers.reshape(len(column), *tail)


def _fill(flat: pa.Array, filling: int | float) -> pa.Array:
    """Replace the missing numbers in a flat column; NaN counts as missing, as in training."""
    if pa.types.is_null(flat.type):
        return pa.array([filling] * len(flat))
    if isinstance(filling, float) and not pa.types.is_floating(flat.type):
        flat = flat.cast(pa.float64())  # an integer column would truncate the replacement
    if pa.types.is_uint64(flat.type):
        filling %= 2**64  # ids are signed in exports
    if pa.types.is_floating(flat.type):
        flat = pc.if_else(pc.is_nan(flat), pa.scalar(None, flat.type), flat)
    return flat.fill_null(pa.scalar(filling, flat.type)) if flat.null_count else flat


def is_list(kind: pa.DataType) -> bool:
    """Return whether this is a list type; list views, which may share values, do not count."""
    types = pa.types
    found: bool = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return found


def _offsets(lists: pa.Array) -> NDArray[np.int64]:
    """Return the offsets of the lists: int64[B + 1]."""
    lengths = pc.list_value_length(lists).to_numpy(zero_copy_only=False)
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _numbers(flat: pa.Array, dtype: str) -> NDArray[Any]:
    if flat.null_count:
        raise ValueError(f"{flat.null_count} values are null")
    if pa.types.is_uint64(flat.type) and dtype == "int64":
        keys: NDArray[np.uint64] = flat.to_numpy(zero_copy_only=False)
        return keys.view(np.int64)  # bit for bit
    wanted = pa.bool_() if dtype == "bool" else pa.from_numpy_dtype(np.dtype(dtype))
    # Rounding a float64 from a file to float32 is intended.
    numbers = flat.cast(wanted, safe=not dtype.startswith("float"))
    array: NDArray[Any] = numbers.to_numpy(zero_copy_only=False)
    return array
