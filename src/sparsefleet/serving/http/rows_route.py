"""POST /v1/rows: return rows as they are served, to compare them with other copies."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from sparsefleet.serving.http.examples import (
    ARROW_STREAM,
    column_of,
    form_of,
    parse_json,
    table_as_stream,
    whole_numbers,
)
from sparsefleet.serving.http.models import ServedModel
from sparsefleet.serving.http.openapi import ROWS_BODY, answers
from sparsefleet.serving.http.refusal import Refusal
from sparsefleet.serving.http.service import Service
from sparsefleet.store.arrays import Keys

__all__ = ["router"]

router = APIRouter()


@router.post(
    "/v1/rows",
    summary="Return rows",
    description="Returns an Arrow stream with the columns key, found and values; a key without a "
    "row has zeros as values. The schema metadata holds the version.",
    responses=answers(
        *(400, 401, 404, 408, 413, 415, 422, 429, 500, 503, 504),
        ok="Rows.",
        content={ARROW_STREAM: {"schema": {"type": "string", "format": "binary"}}},
    ),
    openapi_extra=ROWS_BODY,
)
async def look_at_rows(request: Request, version: str | None = None) -> Response:
    service: Service = request.app.state.service
    with service.admission.place() as place, service.models.lease(version) as model:
        if form_of(request.headers.get("content-type")) != "application/json":
            raise Refusal(415, "unsupported_form", "Content-Type must be application/json")
        body, most = await place.read(request), service.config.max_examples
        table, keys = await service.parsed(
            place, "application/json", len(body), lambda: _parse(body, most)
        )
        if table not in {entry.name for entry in model.predictor.manifest.tables}:
            known = ", ".join(entry.name for entry in model.predictor.manifest.tables)
            raise Refusal(
                404, "unknown_table", f"there is no table {table!r:.80}; the tables are {known}"
            )
        place.hold(model.memory.of_rows(table, len(keys)))
        raw = await service.within_deadline(model.batcher.call(lambda: _rows(model, table, keys)))
        return Response(raw, media_type=ARROW_STREAM)


def _parse(body: bytes, most: int) -> tuple[str, Keys]:
    try:
        content = parse_json(body)
    except ValueError as error:
        raise Refusal(400, "malformed", f"the body cannot be read as JSON: {error}") from error
    if not isinstance(content, dict) or content.keys() != {"table", "keys"}:
        raise Refusal(422, "inputs_do_not_fit", 'the body must be {"table": NAME, "keys": [...]}')
    table, keys = content["table"], content["keys"]
    if not isinstance(table, str) or not isinstance(keys, list):
        raise Refusal(422, "inputs_do_not_fit", '"table" must be a string and "keys" a list')
    keys = whole_numbers(keys)
    if not all(type(key) is int and -(2**63) <= key < 2**64 for key in keys):
        span = f"{-(2**63)}..{2**64 - 1}"
        raise Refusal(422, "inputs_do_not_fit", f'"keys" must be integers in {span}')
    if len(keys) > most:
        raise Refusal(
            413, "too_many_keys", f"the request has {len(keys):,} keys, and the limit is {most:,}"
        )
    return table, np.array([key % 2**64 for key in keys], np.uint64)


def _rows(model: ServedModel, table: str, keys: Keys) -> bytes:
    ids = keys.view(np.int64)
    source = model.rows.tables({table: ids})[table]
    columns = {
        "key": pa.array(keys),
        "found": pa.array(source.known(keys)),
        "values": column_of(source.look_up(ids)),
    }
    return table_as_stream(columns, {"version": model.version, "table": table})
