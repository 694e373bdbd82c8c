"""The routes under /v1: predictions, rows, the model's description and its versions."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
from typing import Any

import numpy as np
import pyarrow as pa
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from sparsefleet.errors import NotFoundError, SparseFleetError, StoreUnavailableError
from sparsefleet.serving.export.feeds import Arrays
from sparsefleet.serving.http.examples import (
    ARROW_STREAM,
    column_of,
    form_of,
    parse_json,
    read_examples,
    table_as_stream,
    whole_numbers,
)
from sparsefleet.serving.http.inspection import inspect, trace
from sparsefleet.serving.http.models import Models, ServedModel
from sparsefleet.serving.http.openapi import (
    PREDICT_BODY,
    PREDICT_QUERY,
    PREDICTIONS,
    ROWS_BODY,
    answers,
    body_of,
)
from sparsefleet.serving.http.refusal import Refusal, refusal_for
from sparsefleet.serving.http.service import Service
from sparsefleet.store.arrays import Keys

__all__ = ["router"]

router = APIRouter()
_TRUE, _FALSE = ("true", "1"), ("false", "0")
_CLOSELY_S = 60.0  # a trace may have to load torch first


@router.post(
    "/v1/predict",
    summary="Predict examples",
    description="Examples as JSON or as an Arrow stream with one column per input; also as "
    "text/csv, or as application/x-ndjson with one example per line.",
    responses=answers(
        *(400, 401, 404, 408, 413, 415, 422, 429, 500, 503, 504),
        ok="Predictions.",
        content=PREDICTIONS,
    ),
    openapi_extra=PREDICT_BODY | PREDICT_QUERY,
)
async def predict(request: Request) -> Response:
    service: Service = request.app.state.service
    version = request.query_params.get("version")
    unknown, traced = flag(request, "unknown"), flag(request, "trace")
    with service.admission.admit() as admitted, service.models.lease(version) as model:
        form = form_of(request.headers.get("content-type"))
        wants_arrow = _wants_arrow(request.headers.get("accept", ""), form)
        body = await admitted.read(request)
        schema, most = model.predictor.schema, service.config.max_examples
        arrays = await service.parsed(
            admitted, form, len(body), lambda: read_examples(form, body, schema, most)
        )
        model.memory.check_rows(arrays)
        admitted.hold(model.memory.of_prediction(arrays, model.layout.count(arrays)))
        more: dict[str, Any] = {}
        if unknown or traced:
            work = model.batcher.call(lambda: _closely(model, arrays, unknown, traced))
            found, more = await service.within_deadline(work, _CLOSELY_S if traced else None)
        else:
            found = await service.within_deadline(model.batcher.predict(arrays))
        _check_finite(found)
        return _arrow(model, found) if wants_arrow and not more else _json(model, found, more)


def flag(request: Request, name: str) -> bool:
    """Parse a boolean query parameter by hand; FastAPI's parser takes longer than a prediction."""
    value = request.query_params.get(name, "false").lower()
    if value not in _TRUE + _FALSE:
        raise Refusal(422, "inputs_do_not_fit", f"query.{name} must be true or false")
    return value in _TRUE


def _closely(
    model: ServedModel, arrays: Arrays, unknown: bool, traced: bool
) -> tuple[Arrays, dict[str, Any]]:
    tables = model.predictor.tables_for(arrays)  # the whole response uses one snapshot
    inspected = inspect(model.predictor, arrays, model.memory.bound(tables))
    more: dict[str, Any] = {}
    if unknown:
        more["unknown"] = inspected.unknown
    if traced:
        more["trace"] = trace(model.predictor, model.layout, model.memory, arrays, tables)
    return inspected.targets, more


def _wants_arrow(accept: str, form: str) -> bool:
    """Return whether to respond in Arrow: as the Accept header requests or, without that header, in
    the format of the request."""
    if "application/json" in accept:
        return False
    return form == ARROW_STREAM or ARROW_STREAM in accept


def _check_finite(targets: Arrays) -> None:
    for name, array in targets.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            at = int(np.argwhere(~np.isfinite(array))[0][0])
            raise Refusal(
                422,
                "prediction_not_finite",
                f"'{name}' of example {at} is not a finite number, because the inputs are too "
                "large for the model",
            )


def _json(model: ServedModel, targets: Arrays, more: dict[str, Any]) -> Response:
    predictions = {name: array.tolist() for name, array in targets.items()}
    content = {"version": model.version, "predictions": predictions, **more}
    return Response(json.dumps(content), media_type="application/json")


def _arrow(model: ServedModel, targets: Arrays) -> Response:
    columns = {name: column_of(array) for name, array in targets.items()}
    raw = table_as_stream(columns, {"version": model.version})
    return Response(raw, media_type=ARROW_STREAM)


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
    with service.admission.admit() as admitted, service.models.lease(version) as model:
        _require_json(request)
        body, most = await admitted.read(request), service.config.max_examples
        table, keys = await service.parsed(
            admitted, "application/json", len(body), lambda: _parse(body, most)
        )
        if table not in {entry.name for entry in model.predictor.manifest.tables}:
            known = ", ".join(entry.name for entry in model.predictor.manifest.tables)
            raise Refusal(
                404, "unknown_table", f"there is no table {table!r:.80}; the tables are {known}"
            )
        admitted.hold(model.memory.of_rows(table, len(keys)))
        raw = await service.within_deadline(model.batcher.call(lambda: _rows(model, table, keys)))
        return Response(raw, media_type=ARROW_STREAM)


def _require_json(request: Request) -> None:
    if form_of(request.headers.get("content-type")) != "application/json":
        raise Refusal(415, "unsupported_form", "Content-Type must be application/json")


def _parse_json(body: bytes) -> Any:
    try:
        return parse_json(body)
    except ValueError as error:
        raise Refusal(400, "malformed", f"the body cannot be read as JSON: {error}") from error


def _parse(body: bytes, most: int) -> tuple[str, Keys]:
    content = _parse_json(body)
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


_PACKAGES = ("sparsefleet", "torch", "onnxruntime", "numpy", "pyarrow")
_CHOICE = {
    "type": "object",
    "required": ["version"],
    "properties": {"version": {"type": "string"}},
    "additionalProperties": False,
}


@router.get(
    "/v1/model",
    summary="Describe the model",
    responses=answers(401, 404, 500, 503, ok="Version, schema, checksums, settings."),
)
async def describe_model(request: Request, version: str | None = None) -> dict[str, Any]:
    service: Service = request.app.state.service
    with service.models.lease(version) as model:
        return _description(service, model)


def _description(service: Service, model: ServedModel) -> dict[str, Any]:
    manifest = model.predictor.manifest
    config = service.config
    content: dict[str, Any] = json.loads(manifest.to_json())
    return {
        "name": model.name,
        "version": model.version,
        "created": manifest.created,
        "schema": content["schema"],
        "files": content["files"],
        "tables": content["tables"],
        "settings": {
            "engine": model.predictor.engine,
            # ONNX Runtime fuses operators; torch runs the recorded graph's operators one by one.
            "fused": model.predictor.engine == "onnx",
            "rows": type(model.rows).__name__,
            "rows_updated": model.rows.freshness(),
            "update_number": getattr(model.rows, "sequence", 0),
            "update_problem": getattr(model.rows, "problem", None),
            "precision": {entry.name: entry.format for entry in manifest.tables},
            "threads": config.threads,
            "workers": config.workers,
            "max_batch": model.batcher.max_batch,
            "max_examples": config.max_examples,
            "max_request_bytes": config.max_request_bytes,
            "max_row_bytes": config.max_row_bytes,
            "packages": _versions(),
        },
        "golden": _golden(model),
        "manifest": content,
    }


def _golden(model: ServedModel) -> list[str]:
    """Return the first golden examples as samples, each in one line of JSON.

    The samples are text because JavaScript would round large ids.
    """
    schema, inputs = model.predictor.schema, model.predictor.golden.inputs
    count = min(2, model.layout.count(inputs))
    first = model.layout.part(inputs, count)
    rows: list[dict[str, Any]] = [{} for _ in range(count)]
    for item in schema.inputs:
        if not item.is_ragged:
            for row, value in zip(rows, first[item.name].tolist(), strict=True):
                row[item.name] = value
            continue
        values, offsets = (first[name] for name in item.arrays)
        ends = [*offsets.tolist(), len(values)]
        for at, row in enumerate(rows):
            row[item.name] = values[ends[at] : ends[at + 1]].tolist()
    return [json.dumps(row) for row in rows]


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


@router.get(
    "/v1/versions",
    summary="List versions",
    responses=answers(
        401, 500, 503, ok="All versions, with the active and the previously active version."
    ),
)
async def list_versions(request: Request) -> dict[str, Any]:
    models: Models = request.app.state.service.models
    try:
        versions = await asyncio.to_thread(models.catalogue.versions)
    except SparseFleetError as error:
        raise _as_refusal(error) from error
    loaded = {model.version for model in models.loaded()}
    return {
        "active": _named(models.active),
        "previous": _named(models.previous),
        "failure": models.failure,
        "versions": [
            {
                "name": version.name,
                "version": version.digest,
                "created": version.created,
                "loaded": version.digest in loaded,
            }
            for version in versions
        ],
    }


@router.post(
    "/v1/versions/active",
    summary="Switch to a version",
    description="Opens the version next to the active one, tests it, and then makes it active. "
    "Requests in progress finish on the previous version.",
    responses=answers(
        *(400, 401, 404, 408, 409, 413, 415, 422, 429, 500, 503),
        ok="The version that is active now.",
    ),
    openapi_extra=body_of(_CHOICE),
)
async def switch(request: Request) -> dict[str, Any]:
    service: Service = request.app.state.service
    with service.admission.admit() as admitted:
        _require_json(request)
        body = await admitted.read(request)
        content = await service.parsed(
            admitted, "application/json", len(body), lambda: _parse_json(body)
        )
        if not isinstance(content, dict) or content.keys() != {"version"}:
            raise Refusal(422, "inputs_do_not_fit", 'the body must be {"version": NAME}')
        if not isinstance(content["version"], str):
            raise Refusal(422, "inputs_do_not_fit", '"version" must be a string')
        try:
            await service.models.switch(content["version"])
        except (SparseFleetError, OSError) as error:
            raise _as_refusal(error) from error
    return _now(service.models)


@router.post(
    "/v1/versions/rollback",
    summary="Go back to the previous version",
    responses=answers(401, 404, 409, 429, 500, 503, ok="The version that is active now."),
)
async def roll_back(request: Request) -> dict[str, Any]:
    service: Service = request.app.state.service
    with service.admission.admit() as admitted:
        admitted.take()
        try:
            await service.models.roll_back()
        except (SparseFleetError, OSError) as error:
            raise _as_refusal(error) from error
    return _now(service.models)


def _as_refusal(error: Exception) -> Refusal:
    if isinstance(error, NotFoundError):
        return Refusal(404, "unknown_version", str(error))
    if isinstance(error, StoreUnavailableError):
        return refusal_for(error)
    return Refusal(409, "cannot_be_served", str(error))


def _now(models: Models) -> dict[str, Any]:
    return {"active": _named(models.active), "previous": _named(models.previous)}


def _named(model: ServedModel | None) -> dict[str, str] | None:
    return None if model is None else {"name": model.name, "version": model.version}
