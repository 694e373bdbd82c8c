"""Parse the examples of a request, in any supported format, into checked inputs.

JSON is read strictly: a number of the wrong kind is an error.

In shapes, B is the number of examples.
"""

from __future__ import annotations

import io
import json
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparsefleet.errors import FeedError
from sparsefleet.serving.example_files import input_of_column, is_list, read_csv
from sparsefleet.serving.export.feeds import Arrays, check_feeds
from sparsefleet.serving.export.hashing import STRINGS_NEED_FEATURES, hash_values
from sparsefleet.serving.export.manifest import InputSchema, Schema
from sparsefleet.serving.export.row_file import is_compressed
from sparsefleet.serving.http.refusal import Refusal

__all__ = [
    "ARROW_STREAM",
    "FORMS",
    "column_of",
    "form_of",
    "inputs_of_rows",
    "inputs_of_table",
    "parse_arrow",
    "parse_json",
    "read_examples",
    "table_as_stream",
    "whole_numbers",
]

_SHOWN = 8  # maximum number of names in a message
_INT64_MIN, _INT64_END, _KEYS_END = -(2**63), 2**63, 2**64


def parse_json(text: bytes) -> Any:
    """Parse JSON. Raises ValueError, including for NaN and duplicate names in an object."""
    try:
        return _DECODER.decode(text.decode("utf-8"))
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


def inputs_of_rows(rows: Sequence[Any], schema: Schema) -> dict[str, Any]:
    """Return the inputs by name, in the form that `Predictor.predict` takes.

    rows: one object per example with a field per input.

    Raises a FeedError that names the example and the input.

    >>> ads = InputSchema(name="ad", dtype="int64", shape=("batch",))
    >>> schema = Schema(inputs=(ads,), targets=(), lookups=())
    >>> inputs_of_rows([{"ad": 3}, {"ad": 2**64 - 1}], schema)
    {'ad': array([ 3, -1])}
    """
    names = {item.name for item in schema.inputs}
    for at, row in enumerate(rows):
        if not isinstance(row, dict):
            raise FeedError(
                f"example {at} must be an object with {', '.join(names)}, got {_shown(row)}"
            )
        if row.keys() != names:
            _raise_wrong_names(at, row.keys(), schema)
    return {
        item.name: _input([row[item.name] for row in rows], item, schema) for item in schema.inputs
    }


def _raise_wrong_names(at: int, given: Collection[str], schema: Schema) -> None:
    wanted = {item.name: item for item in schema.inputs}
    missing = [name for name in wanted if name not in given]
    more = [f"{name!r:.60}" for name in islice((n for n in given if n not in wanted), _SHOWN)]
    summary = [f"lacks {', '.join(missing)}"] if missing else []
    summary += [f"has unknown {', '.join(more)}"] if more else []
    described = "; ".join(map(str, schema.inputs))
    raise FeedError(f"example {at} {' and '.join(summary)}; the model takes {described}")


def _input(values: list[Any], item: InputSchema, schema: Schema) -> Any:
    """Convert the B values of one input, one per example."""
    hashed, filling = schema.hashing(item.name), schema.filling(item.name)
    if schema.takes_null(item.name):
        values = [_filled(value, item) for value in values]
    if item.is_ragged:
        lengths = _lengths(values, item, 1)
        flat: list[Any] = list(chain.from_iterable(values))
        tail = item.shape[1:]
    else:
        lengths, flat, tail = [], values, item.shape[1:]
    sizes: list[int] = []
    for depth, size in enumerate(tail):
        found = set(_lengths(flat, item, depth + 1 + item.is_ragged))
        wanted = {size} if isinstance(size, int) else found
        if found - wanted or len(found) > 1:
            raise FeedError(
                f"input '{item.name}' has lists of {_some(found)} values, expected {item}"
            )
        sizes.append(size if isinstance(size, int) else next(iter(found), 0))
        flat = list(chain.from_iterable(flat))
    width = math.prod(sizes)
    if hashed is not None:
        flat = hash_values(flat, hashed, 0 if item.is_ragged else width)
    if filling is not None:
        flat = [filling if value is None else value for value in flat]
    places = _Places(lengths if item.is_ragged else None, width)
    numbers = _numbers(flat, item, places, is_hashed=hashed is not None)
    rows = sum(lengths) if item.is_ragged else len(values)
    array = numbers.reshape(rows, *sizes)
    if not item.is_ragged:
        return array
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return array, offsets if item.is_closed else offsets[:-1]


def _filled(value: Any, item: InputSchema) -> Any:
    """Replace a missing list with a list of missing values; return other values unchanged."""
    if value is not None or (not item.is_ragged and len(item.shape) == 1):
        return value
    sizes = [size for size in item.shape[1:] if isinstance(size, int)]
    return [None] if item.is_ragged else [None] * (sizes[0] if len(sizes) == 1 else 1)


class _Places(NamedTuple):
    """Records which example each value in a flat list belongs to."""

    lengths: list[int] | None
    """The lengths of ragged examples; None if all have `width` values."""
    width: int

    def example(self, at: int) -> int:
        if self.lengths is None:
            return at // max(self.width, 1)
        ends = np.cumsum(self.lengths) * max(self.width, 1)
        return int(np.searchsorted(ends, at, side="right"))


def _lengths(values: list[Any], item: InputSchema, depth: int) -> list[int]:
    for at, value in enumerate(values):
        if type(value) is not list:
            where = f"example {at}, " if depth == 1 else ""
            raise FeedError(
                f"{where}input '{item.name}' must be a list, got {_shown(value)}; expected {item}"
            )
    return list(map(len, values))


def _numbers(
    flat: list[Any], item: InputSchema, places: _Places, *, is_hashed: bool
) -> NDArray[Any]:
    dtype = np.dtype(item.dtype)
    if dtype.kind in "iu":
        flat = whole_numbers(flat)
    kinds = set(map(type, flat))
    allowed = {bool} if dtype.kind == "b" else {int} if dtype.kind in "iu" else {int, float}
    if kinds - allowed:
        at = next(at for at, value in enumerate(flat) if type(value) not in allowed)
        hint = ""
        if flat[at] is None:
            hint = "; null needs a model whose features give this input a missing= value"
        elif is_hashed:
            hint = ", as an id or a string"
        elif type(flat[at]) is str and dtype == np.int64:
            hint = f"; {STRINGS_NEED_FEATURES}"
        raise FeedError(
            f"example {places.example(at)}, input '{item.name}' has the value {_shown(flat[at])}, "
            f"expected {item}{hint}"
        )
    if dtype.kind == "f":
        return _floats(flat, item, dtype, places)
    return _integers(flat, item, dtype, places)


def whole_numbers(values: list[Any]) -> list[Any]:
    """Convert floats without a fraction to integers, because JSON does not distinguish the two.

    >>> whole_numbers([3, 3.0, 3.5, True])
    [3, 3, 3.5, True]
    """
    if float not in set(map(type, values)):
        return values
    return [
        int(value) if type(value) is float and value.is_integer() else value for value in values
    ]


def _floats(
    flat: list[Any], item: InputSchema, dtype: np.dtype[Any], places: _Places
) -> NDArray[Any]:
    try:
        with np.errstate(over="ignore"):
            array = np.array(flat, np.float64).astype(dtype)
    except OverflowError:  # an integer beyond float64
        array = np.array([min(max(value, -1e308), 1e308) for value in flat], np.float64)
        with np.errstate(over="ignore"):
            array = array.astype(dtype)
    finite = np.isfinite(array)
    if not finite.all():
        at = int(np.argmin(finite))
        raise FeedError(
            f"example {places.example(at)}, input '{item.name}' has a number too large for "
            f"{dtype}: {_shown(flat[at])}"
        )
    return array


def _integers(
    flat: list[Any], item: InputSchema, dtype: np.dtype[Any], places: _Places
) -> NDArray[Any]:
    low, end = (_INT64_MIN, _KEYS_END) if dtype == np.int64 else _range_of(dtype)
    if flat and (min(flat) < low or max(flat) >= end):
        at = next(at for at, value in enumerate(flat) if not low <= value < end)
        raise FeedError(
            f"example {places.example(at)}, input '{item.name}': expected a value in "
            f"{low}..{end - 1}, got {_shown(flat[at])}"
        )
    if dtype == np.int64 and flat and max(flat) >= _INT64_END:  # keys keep their bits
        flat = [value - _KEYS_END if value >= _INT64_END else value for value in flat]
    return np.array(flat, dtype)


def _range_of(dtype: np.dtype[Any]) -> tuple[int, int]:
    if dtype.kind == "b":
        return 0, 2
    limits = np.iinfo(dtype)
    return int(limits.min), int(limits.max) + 1


def _shown(value: Any) -> str:
    kind = {dict: "an object", list: "a list", type(None): "null"}.get(type(value))
    if kind is not None:
        return kind
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:40] + "..."


def _some(lengths: set[int]) -> str:
    return f"{min(lengths)}" if len(lengths) == 1 else f"{min(lengths)} to {max(lengths)}"


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = next(
            name for name, count in Counter(name for name, _ in pairs).items() if count > 1
        )
        raise ValueError(f"{twice!r:.60} occurs twice in one object")
    return found


_DECODER = json.JSONDecoder(parse_constant=_no_constant, object_pairs_hook=_object)


# Read examples from an Arrow IPC stream, and write predictions as an Arrow IPC stream.
#
# Anything that could expand when read is rejected up front: compressed buffers, dictionaries, run-
# length encoding, nulls without buffers, and buffers shared by columns.

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


_HEADER_BYTES = 1 << 20
_MORE_COLUMNS = 64  # up to this number, the error lists the names
FORMS = ("application/json", ARROW_STREAM, "application/x-ndjson", "text/csv")


def form_of(content_type: str | None) -> str:
    """Return the format that a Content-Type names; reject unsupported formats with 415.

    >>> form_of("text/csv; charset=utf-8")
    'text/csv'
    """
    form = (content_type or "").split(";")[0].strip().lower()
    if form not in FORMS:
        raise Refusal(
            415,
            "unsupported_form",
            f"Content-Type must be one of {', '.join(FORMS)}, got {form!r:.60}",
        )
    return form


def read_examples(form: str, body: bytes, schema: Schema, max_examples: int) -> Arrays:
    """Return the input arrays by graph name.

    Rejects malformed bodies with 400, inputs that do not match the model with 422 and too many
    examples with 413.
    """
    try:
        if form == ARROW_STREAM or form == "text/csv":
            if form == "text/csv":
                _check_lines(body, schema, max_examples)
            table = _table(form, body, schema)
            _check_count(len(table), max_examples)
            inputs = inputs_of_table(table, schema)
        else:
            rows = _rows(form, body, max_examples)
            _check_count(len(rows), max_examples)
            inputs = inputs_of_rows(rows, schema)
        arrays = check_feeds(schema, inputs)
    except FeedError as error:
        raise Refusal(422, "inputs_do_not_fit", str(error)) from error
    _check_finite(arrays)
    return arrays


def _rows(form: str, body: bytes, max_examples: int) -> list[object]:
    try:
        if form == "application/json":
            content = parse_json(body)
        else:
            lines = [line for line in body.splitlines() if line.strip()]
            _check_count(len(lines), max_examples)
            return [parse_json(line) for line in lines]
    except ValueError as error:
        raise Refusal(400, "malformed", f"the body cannot be read as {form}: {error}") from error
    if not isinstance(content, dict) or content.keys() != {"examples"}:
        found = _shown(content)
        if isinstance(content, dict) and content:
            found += f" with {', '.join(map(_shown, islice(content, _SHOWN)))}"
        raise Refusal(
            422, "inputs_do_not_fit", f'the body must be {{"examples": [...]}}, got {found}'
        )
    rows = content["examples"]
    if not isinstance(rows, list):
        raise Refusal(
            422, "inputs_do_not_fit", f'"examples" must be a list of objects, got {_shown(rows)}'
        )
    return rows


def _table(form: str, body: bytes, schema: Schema) -> pa.Table:
    try:
        if form == ARROW_STREAM:
            return parse_arrow(body, {item.input for item in schema.hashed})
        return read_csv(io.BytesIO(body), schema)
    except (ValueError, OSError, pa.ArrowException) as error:
        raise Refusal(400, "malformed", f"the body cannot be read as {form}: {error}") from error


def _check_lines(body: bytes, schema: Schema, max_examples: int) -> None:
    """Reject CSV with too many columns or lines before parsing, which needs much more memory."""
    header = next((line for line in body[:_HEADER_BYTES].splitlines() if line), b"")
    columns, wanted = header.count(b",") + 1, len(schema.inputs)
    if columns > wanted + _MORE_COLUMNS:
        raise FeedError(f"the first line names {columns:,} columns; the model takes {wanted}")
    _check_count(max(body.count(b"\n"), body.count(b"\r")) - 1, max_examples)


def _check_count(count: int, most: int) -> None:
    if count > most:
        raise Refusal(
            413,
            "too_many_examples",
            f"the request has {count:,} examples, and the limit is {most:,}; send fewer at a time",
        )


def _check_finite(arrays: Arrays) -> None:
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            at = np.argwhere(~np.isfinite(array))[0].tolist()
            raise Refusal(
                422,
                "inputs_do_not_fit",
                f"input '{name}' must be finite, got {array[tuple(at)]} at {at}",
            )
