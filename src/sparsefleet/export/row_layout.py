"""Columns of a file of rows."""

from __future__ import annotations

import pyarrow as pa

from sparsefleet.export.quantization import RowFormat

__all__ = ["row_schema"]

_VALUE_TYPES = {"float32": pa.float32(), "float16": pa.float16(), "int8": pa.int8()}


def row_schema(table: str, dim: int, row_format: RowFormat) -> pa.Schema:
    """key uint64, values of the format, and in int8 a scale for each row.

    >>> row_schema("ads", 8, "int8").names
    ['key', 'values', 'scale']
    """
    value = pa.field("item", _VALUE_TYPES[row_format], nullable=False)
    columns = [
        pa.field("key", pa.uint64(), nullable=False),
        pa.field("values", pa.list_(value, dim), nullable=False),
    ]
    if row_format == "int8":
        columns.append(pa.field("scale", pa.float32(), nullable=False))
    return pa.schema(columns, {"table": table})
