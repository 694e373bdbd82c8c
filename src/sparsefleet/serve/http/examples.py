"""A request's examples, in any of the forms that are taken, as checked inputs of a model."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa

from sparsefleet.errors import FeedError
from sparsefleet.export.feeds import Arrays, check_feeds
from sparsefleet.export.schema import Schema
from sparsefleet.serve.columns import read_csv
from sparsefleet.serve.http.arrow_examples import ARROW_STREAM, inputs_of_table, parse_arrow
from sparsefleet.serve.http.json_examples import inputs_of_rows, parse_json
from sparsefleet.serve.http.refusal import Refusal

__all__ = ["FORMS", "form_of", "read_examples"]

FORMS = ("application/json", ARROW_STREAM, "application/x-ndjson", "text/csv")


def form_of(content_type: str | None) -> str:
    """The form that a Content-Type names; refuses any other.

    >>> form_of("text/csv; charset=utf-8")
    'text/csv'
    """
    form = (content_type or "").split(";")[0].strip().lower()
    if form not in FORMS:
        raise Refusal(
            415, "unsupported_form", f"Content-Type is {form!r:.60}, wanted {', '.join(FORMS)}"
        )
    return form


def read_examples(form: str, body: bytes, schema: Schema, max_examples: int) -> Arrays:
    """Inputs by their names in the graph. Refuses what is malformed with 400, what does not fit the
    model with 422, too many examples with 413."""
    try:
        if form == ARROW_STREAM or form == "text/csv":
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
            return parse_arrow(body)
        return read_csv(io.BytesIO(body), schema)
    except (ValueError, OSError, pa.ArrowException) as error:
        raise Refusal(400, "malformed", f"the body cannot be read as {form}: {error}") from error


def _check_count(count: int, most: int) -> None:
    if count > most:
        raise Refusal(
            413,
            "too_many_examples",
            f"the request has {count:,} examples, and the limit is {most:,}: send fewer at a time",
        )


def _check_finite(arrays: Arrays) -> None:
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            at = np.argwhere(~np.isfinite(array))[0].tolist()
            raise Refusal(
                422,
                "inputs_do_not_fit",
                f"input '{name}' is {array[tuple(at)]} at {at}; numbers must be finite",
            )
