"""GET /v1/model, and the routes that list and switch versions."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request

from sparsefleet.errors import NotFoundError, SparseFleetError, StoreUnavailableError
from sparsefleet.serving.http.examples import form_of, parse_json
from sparsefleet.serving.http.models import Models, ServedModel
from sparsefleet.serving.http.openapi import answers, body_of
from sparsefleet.serving.http.refusal import Refusal, refusal_for
from sparsefleet.serving.http.service import Service

__all__ = ["router"]

router = APIRouter()
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
    with service.admission.place() as place:
        if form_of(request.headers.get("content-type")) != "application/json":
            raise Refusal(415, "unsupported_form", "Content-Type must be application/json")
        try:
            body = await place.read(request)
            content = await service.parsed(
                place, "application/json", len(body), lambda: parse_json(body)
            )
        except ValueError as error:
            raise Refusal(400, "malformed", f"the body cannot be read as JSON: {error}") from error
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
    with service.admission.place() as place:
        place.take()
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
