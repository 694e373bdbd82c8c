"""Examples from files, and predictions into files: Parquet, CSV and JSON.

A column has the name of an input. What has several values an example is a list there; in CSV,
numbers apart by spaces.

Letters: B examples.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from sparsefleet.errors import ConfigError, FeedError, InputFileError, InputMissingError
from sparsefleet.export.schema import InputSchema, Schema

__all__ = [
    "predictions_as_text",
    "read_examples",
    "read_inputs",
    "read_table",
    "write_predictions",
]

_SUFFIXES = (".parquet", ".csv", ".json", ".jsonl")


def read_examples(path: Path, schema: Schema, batch: int) -> Iterator[dict[str, Any]]:
    """The inputs of up to `batch` examples at a time, as `Predictor.predict` takes them."""
    table = read_table(path, schema)
    for begin in range(0, max(len(table), 1), batch):
        yield read_inputs(path, table.slice(begin, batch), schema)


def read_inputs(path: Path, table: pa.Table, schema: Schema) -> dict[str, Any]:
    """The inputs in the columns of `table`, as `Predictor.predict` takes them."""
    for item in schema.inputs:
        if item.name not in table.column_names:
            raise FeedError(
                f"{path} has no column '{item.name}'; it has {', '.join(table.column_names)}"
            )
    return {item.name: _input_of(path, table, item) for item in schema.inputs}


def _input_of(path: Path, table: pa.Table, item: InputSchema) -> Any:
    try:
        return _input(table.column(item.name).combine_chunks(), item)
    except (pa.ArrowException, ValueError) as error:
        raise FeedError(f"{path}, column '{item.name}': {error}; wanted {item}") from error


def write_predictions(path: Path, predictions: Mapping[str, NDArray[Any]]) -> None:
    """One column a target, one row an example; the form follows from the name of the file."""
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
    """That of one example: a number, or lists of them; also where there is no example."""
    kind = pa.from_numpy_dtype(array.dtype)
    for _ in array.shape[1:]:
        kind = pa.list_(kind)
    return kind


def predictions_as_text(predictions: Mapping[str, NDArray[Any]]) -> str:
    """The same as CSV.

    >>> print(predictions_as_text({"p": np.array([0.5, 0.25])}), end="")
    p
    0.5
    0.25
    """
    cells = [[" ".join(map(str, np.ravel(row))) for row in array] for array in predictions.values()]
    lines = [",".join(predictions), *(",".join(row) for row in zip(*cells, strict=True))]
    return "\n".join(lines) + "\n"


def check_suffix(path: Path) -> None:
    """Raises ConfigError unless the name says which form it is."""
    if path.suffix not in _SUFFIXES:
        raise ConfigError(f"{path} must end with one of {', '.join(_SUFFIXES)}")


def read_table(path: Path, schema: Schema) -> pa.Table:
    """All columns of a file of examples; in CSV, inputs of several values are lists of text."""
    check_suffix(path)
    try:
        if path.suffix == ".parquet":
            return pyarrow.parquet.read_table(path)
        if path.suffix == ".csv":
            return _read_csv(path, schema)
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines() if path.suffix == ".jsonl" else []
        rows = [json.loads(line) for line in lines if line.strip()] if lines else json.loads(text)
        return pa.Table.from_pylist(rows)
    except FileNotFoundError as error:
        raise InputMissingError(f"there is no file {path}") from error
    except (OSError, ValueError, TypeError, AttributeError, pa.ArrowException) as error:
        raise InputFileError(f"{path} cannot be read as {path.suffix[1:]}: {error}") from error


def _read_csv(path: Path, schema: Schema) -> pa.Table:
    lists = {item.name for item in schema.inputs if item.is_ragged or len(item.shape) > 1}
    options = pyarrow.csv.ConvertOptions(
        column_types={name: pa.string() for name in lists}, strings_can_be_null=False
    )
    table = pyarrow.csv.read_csv(path, convert_options=options)
    for name in lists.intersection(table.column_names):
        cells = table.column(name).to_pylist()
        lists_of_text = pa.array([cell.split() for cell in cells], pa.list_(pa.string()))
        table = table.set_column(table.column_names.index(name), name, lists_of_text)
    return table


def _input(column: pa.Array, item: InputSchema) -> Any:
    if column.null_count:
        raise ValueError(f"{column.null_count} examples have no value")
    if item.is_ragged:
        offsets = _offsets(column)
        return _numbers(column.flatten(), item.dtype), offsets if item.is_closed else offsets[:-1]
    if not item.shape or item.shape[0] != "batch":
        raise ValueError("this input has not a value for each example")
    flat = column
    while pa.types.is_list(flat.type) or pa.types.is_fixed_size_list(flat.type):
        flat = flat.flatten()
    sizes = [size for size in item.shape[1:] if isinstance(size, int)]
    if len(sizes) == len(item.shape) - 1 and len(flat) != len(column) * math.prod(sizes):
        raise ValueError(f"{len(column)} examples have {len(flat)} values")
    numbers = _numbers(flat, item.dtype)
    if len(item.shape) > 1:
        lengths = set(np.diff(_offsets(column)).tolist())
        if len(lengths) > 1:
            raise ValueError(f"examples have {min(lengths)} to {max(lengths)} values")
    tail = [size if isinstance(size, int) else -1 for size in item.shape[1:]]
    return numbers.reshape(len(column), *tail)


def _offsets(lists: pa.Array) -> NDArray[np.int64]:
    """int64[B + 1]"""
    lengths = pc.list_value_length(lists).to_numpy(zero_copy_only=False)
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _numbers(flat: pa.Array, dtype: str) -> NDArray[Any]:
    if pa.types.is_uint64(flat.type) and dtype == "int64":
        keys: NDArray[np.uint64] = flat.to_numpy(zero_copy_only=False)
        return keys.view(np.int64)  # bit for bit
    wanted = pa.bool_() if dtype == "bool" else pa.from_numpy_dtype(np.dtype(dtype))
    # A float32 holds what a file has as float64 only nearly; that is what is wanted.
    numbers = flat.cast(wanted, safe=not dtype.startswith("float"))
    array: NDArray[Any] = numbers.to_numpy(zero_copy_only=False)
    return array
