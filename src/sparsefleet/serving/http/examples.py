"""Parse the examples of a request, in any supported format, into checked inputs."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa

from sparsefleet.errors import FeedError
from sparsefleet.serving.example_files import read_csv
from sparsefleet.serving.export.feeds import Arrays, check_feeds
from sparsefleet.serving.export.manifest import Schema
from sparsefleet.serving.http.arrow_examples import ARROW_STREAM, inputs_of_table, parse_arrow
from sparsefleet.serving.http.json_examples import inputs_of_rows, parse_json
from sparsefleet.serving.http.refusal import Refusal

__all__ = ["FORMS", "form_of", "read_examples"]

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
        raise Refusal(422, "inputs_do_not_fit", 'the body must be {"examples": [...]}')
    rows = content["examples"]
    if not isinstance(rows, list):
        raise Refusal(422, "inputs_do_not_fit", '"examples" must be a list of objects')
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
