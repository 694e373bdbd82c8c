"""Columns of examples as the inputs of a model, whatever they were read from.

Letters: B examples.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from numpy.typing import NDArray

from sparsefleet.export.schema import InputSchema, Schema

__all__ = ["input_of_column", "is_list", "read_csv"]


def read_csv(source: Path | BinaryIO, schema: Schema) -> pa.Table:
    """The columns of a CSV file; those of inputs with several values as lists of text."""
    lists = {item.name for item in schema.inputs if item.is_ragged or len(item.shape) > 1}
    options = pyarrow.csv.ConvertOptions(
        column_types={name: pa.string() for name in lists}, strings_can_be_null=False
    )
    table = pyarrow.csv.read_csv(source, convert_options=options)
    for name in lists.intersection(table.column_names):
        cells = table.column(name).to_pylist()
        lists_of_text = pa.array([cell.split() for cell in cells], pa.list_(pa.string()))
        table = table.set_column(table.column_names.index(name), name, lists_of_text)
    return table


def input_of_column(column: pa.Array, item: InputSchema) -> Any:
    """What `Predictor.predict` takes for an input. Raises ValueError or ArrowException."""
    if column.null_count:
        raise ValueError(f"{column.null_count} examples have no value")
    if item.is_ragged:
        offsets = _offsets(column)
        return _numbers(column.flatten(), item.dtype), offsets if item.is_closed else offsets[:-1]
    if not item.shape or item.shape[0] != "batch":
        raise ValueError("this input has not a value for each example")
    flat = column
    while is_list(flat.type):
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


def is_list(kind: pa.DataType) -> bool:
    """Whether values of this type are lists that own their values."""
    types = pa.types
    found: bool = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return found


def _offsets(lists: pa.Array) -> NDArray[np.int64]:
    """int64[B + 1]"""
    lengths = pc.list_value_length(lists).to_numpy(zero_copy_only=False)
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _numbers(flat: pa.Array, dtype: str) -> NDArray[Any]:
    if flat.null_count:
        raise ValueError(f"{flat.null_count} values are null")
    if pa.types.is_uint64(flat.type) and dtype == "int64":
        keys: NDArray[np.uint64] = flat.to_numpy(zero_copy_only=False)
        return keys.view(np.int64)  # bit for bit
    wanted = pa.bool_() if dtype == "bool" else pa.from_numpy_dtype(np.dtype(dtype))
    # A float32 holds what a file has as float64 only nearly; that is what is wanted.
    numbers = flat.cast(wanted, safe=not dtype.startswith("float"))
    array: NDArray[Any] = numbers.to_numpy(zero_copy_only=False)
    return array
