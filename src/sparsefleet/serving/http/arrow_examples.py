"""Read examples from an Arrow IPC stream, and write predictions as an Arrow IPC stream.

Anything that could expand when read is rejected up front: compressed buffers, dictionaries,
run-length encoding, nulls without buffers, and buffers shared by columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

import pyarrow as pa
from numpy.typing import NDArray

from sparsefleet.errors import FeedError
from sparsefleet.serving.example_files import input_of_column, is_list
from sparsefleet.serving.export.manifest import Schema
from sparsefleet.serving.export.row_file import is_compressed

__all__ = ["ARROW_STREAM", "column_of", "inputs_of_table", "parse_arrow", "table_as_stream"]

ARROW_STREAM = "application/vnd.apache.arrow.stream"


def parse_arrow(body: bytes, hashed: Collection[str] = ()) -> pa.Table:
    """Return the table in an Arrow IPC stream. Raises ValueError or ArrowException.

    hashed: columns that may hold strings.
    """
    for metadata in _messages(body):
        if is_compressed(metadata):
            raise ValueError("compressed buffers are not supported")
    with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
        for field in reader.schema:
            _check_type(field, field.name in hashed)
        table = reader.read_all()
    if table.nbytes > len(body):
        raise ValueError("several columns share a buffer, which is not supported")
    table.validate(full=True)
    return table


def inputs_of_table(table: pa.Table, schema: Schema) -> dict[str, Any]:
    """Return the inputs by name, in the form that `Predictor.predict` takes. Raises FeedError."""
    wanted = {item.name for item in schema.inputs}
    given = table.column_names
    if set(given) != wanted or len(given) != len(wanted):
        counts = Counter(given)
        missing = [item.name for item in schema.inputs if item.name not in counts]
        more = [f"{name!r:.60}" for name in counts if name not in wanted]
        more += [f"{name!r:.60} twice" for name, count in counts.items() if count > 1]
        text = [f"missing: {', '.join(missing)}"] if missing else []
        text += [f"unexpected: {', '.join(more[:8])}"] if more else []
        described = "; ".join(map(str, schema.inputs))
        raise FeedError(f"wrong columns ({'; '.join(text)}); the model takes {described}")
    inputs = {}
    for item in schema.inputs:
        column = table.column(item.name).combine_chunks()
        try:
            inputs[item.name] = input_of_column(column, item, schema)
        except (pa.ArrowException, ValueError) as error:
            raise FeedError(f"column '{item.name}': {error}; expected {item}") from error
    return inputs


def table_as_stream(columns: Mapping[str, pa.Array], about: Mapping[str, str]) -> bytes:
    """Return an IPC stream with one batch and `about` as schema metadata."""
    table = pa.table(dict(columns)).replace_schema_metadata(dict(about))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    raw: bytes = sink.getvalue().to_pybytes()
    return raw


def column_of(array: NDArray[Any]) -> pa.Array:
    """Return a column with one row per example: numbers or fixed-size lists."""
    column = pa.array(array.reshape(-1))
    for size in reversed(array.shape[1:]):
        column = pa.FixedSizeListArray.from_arrays(column, size)
    return column


def _check_type(field: pa.Field, is_hashed: bool) -> None:
    kind = field.type
    while is_list(kind):
        if pa.types.is_fixed_size_list(kind) and kind.list_size < 1:
            raise ValueError(f"column '{field.name}' has lists of size {kind.list_size}")
        kind = kind.value_type
    types = pa.types
    if is_hashed and (types.is_string(kind) or types.is_large_string(kind)):
        return
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        raise ValueError(
            f"column '{field.name}' has type {field.type}, expected numbers or lists of numbers"
        )


def _messages(body: bytes) -> list[bytes]:
    """Return the metadata of all complete messages in the stream."""
    messages = pa.ipc.MessageReader.open_stream(pa.py_buffer(body))
    found = []
    while True:
        try:
            found.append(messages.read_next_message().metadata.to_pybytes())
        except StopIteration:
            return found
