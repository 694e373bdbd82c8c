"""Examples from files, and predictions into files: Parquet, CSV and JSON.

A column has the name of an input. What has several values an example is a list there; in CSV,
numbers apart by spaces.

Letters: B examples.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from numpy.typing import NDArray

from sparsefleet.errors import ConfigError, FeedError, InputFileError, InputMissingError
from sparsefleet.export.schema import InputSchema, Schema
from sparsefleet.serve.columns import input_of_column, read_csv

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
        return input_of_column(table.column(item.name).combine_chunks(), item)
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
            return read_csv(path, schema)
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines() if path.suffix == ".jsonl" else []
        rows = [json.loads(line) for line in lines if line.strip()] if lines else json.loads(text)
        return pa.Table.from_pylist(rows)
    except FileNotFoundError as error:
        raise InputMissingError(f"there is no file {path}") from error
    except (OSError, ValueError, TypeError, AttributeError, pa.ArrowException) as error:
        raise InputFileError(f"{path} cannot be read as {path.suffix[1:]}: {error}") from error
