"""The examples that are used to compare the export with another copy of the model.

In shapes, B is the number of examples.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsefleet.errors import ConfigError
from sparsefleet.serving.example_files import read_inputs, read_table
from sparsefleet.serving.export.feeds import Arrays, check_feeds
from sparsefleet.serving.export.golden import Golden
from sparsefleet.serving.export.manifest import InputSchema, Schema

__all__ = ["Examples"]


class Examples:
    """B examples as arrays, with labels if known."""

    def __init__(
        self, schema: Schema, arrays: Arrays, labels: NDArray[np.float32] | None, source: str
    ) -> None:
        self.schema = schema
        self.arrays = arrays
        """Arrays by graph name."""
        self.labels = labels
        """float32[B], or None if unknown"""
        self.source = source
        self.count = _count(schema, arrays)

    @classmethod
    def of_golden(cls, schema: Schema, golden: Golden) -> Examples:
        """Return the golden examples of the export."""
        return cls(schema, golden.inputs, None, "golden examples of the export")

    @classmethod
    def of_file(
        cls, path: Path, schema: Schema, *, label: str | None = None, limit: int | None = None
    ) -> Examples:
        """Read a file with one column per input; `label` names the column of labels."""
        table = read_table(path, schema)
        table = table if limit is None else table.slice(0, limit)
        arrays = check_feeds(schema, read_inputs(path, table, schema))
        labels = None
        if label is not None:
            if label not in table.column_names:
                columns = ", ".join(table.column_names)
                raise ConfigError(
                    f"{path} has no label column '{label}'; its columns are {columns}"
                )
            labels = table.column(label).to_numpy().astype(np.float32)
        return cls(schema, arrays, labels, str(path))

    def part(self, begin: int, end: int) -> Arrays:
        """Return the arrays of examples [begin, end)."""
        found: Arrays = {}
        for item in self.schema.inputs:
            found |= _part(item, self.arrays, begin, end)
        return found

    def batches(self, size: int) -> Iterator[Arrays]:
        """Yield all examples, up to `size` at a time."""
        for begin in range(0, max(self.count, 1), size):
            yield self.part(begin, min(begin + size, self.count))

    def row(self, index: int) -> dict[str, Any]:
        """Return one example in the form used in JSON: numbers and lists of numbers."""
        return rows_of(self.schema, self.part(index, index + 1))[0]


def rows_of(schema: Schema, arrays: Arrays) -> list[dict[str, Any]]:
    """Return one dict per example with its inputs by name, as numbers and lists of numbers."""
    columns = {item.name: _column(item, arrays) for item in schema.inputs}
    lengths = [len(column) for column in columns.values()]
    return [
        {name: column[index] for name, column in columns.items()}
        for index in range(min(lengths, default=0))
    ]


def _column(item: InputSchema, arrays: Arrays) -> list[Any]:
    if not item.is_ragged:
        return list(arrays[item.name].tolist())
    values, offsets = (arrays[name] for name in item.arrays)
    ends = offsets[1:] if item.is_closed else [*offsets[1:], len(values)]
    begins = offsets[:-1] if item.is_closed else offsets
    return [values[begin:end].tolist() for begin, end in zip(begins, ends, strict=True)]


def _count(schema: Schema, arrays: Arrays) -> int:
    for item in schema.inputs:
        if item.is_ragged:
            return len(arrays[item.arrays[1]]) - int(item.is_closed)
        if item.shape[:1] == ("batch",):
            return len(arrays[item.name])
    return 1


def _part(item: InputSchema, arrays: Arrays, begin: int, end: int) -> Arrays:
    if not item.is_ragged:
        whole = arrays[item.name]
        return {item.name: whole[begin:end] if item.shape[:1] == ("batch",) else whole}
    (values, numbers), (offsets, places) = ((name, arrays[name]) for name in item.arrays)
    first = int(places[begin]) if begin < len(places) else len(numbers)
    last = int(places[end]) if end < len(places) else len(numbers)
    cut = places[begin : end + 1] if item.is_closed else places[begin:end]
    return {values: numbers[first:last], offsets: cut - first}
