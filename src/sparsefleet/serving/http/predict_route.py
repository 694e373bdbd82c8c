"""POST /v1/predict."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from sparsefleet.serving.export.feeds import Arrays
from sparsefleet.serving.http.examples import (
    ARROW_STREAM,
    column_of,
    form_of,
    read_examples,
    table_as_stream,
)
from sparsefleet.serving.http.inspection import inspect, trace
from sparsefleet.serving.http.models import ServedModel
from sparsefleet.serving.http.openapi import PREDICT_BODY, PREDICT_QUERY, PREDICTIONS, answers
from sparsefleet.serving.http.refusal import Refusal
from sparsefleet.serving.http.service import Service

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
        400,
        401,
        404,
        408,
        413,
        415,
        422,
        429,
        500,
        503,
        504,
        ok="Predictions.",
        content=PREDICTIONS,
    ),
    openapi_extra=PREDICT_BODY | PREDICT_QUERY,
)
async def predict(request: Request) -> Response:
    service: Service = request.app.state.service
    version = request.query_params.get("version")
    unknown, traced = flag(request, "unknown"), flag(request, "trace")
    with service.admission.place() as place, service.models.lease(version) as model:
        form = form_of(request.headers.get("content-type"))
        wants_arrow = _wants_arrow(request.headers.get("accept", ""), form)
        body = await place.read(request)
        schema, most = model.predictor.schema, service.config.max_examples
        arrays = await service.parsed(
            place, form, len(body), lambda: read_examples(form, body, schema, most)
        )
        model.memory.check_rows(arrays)
        place.hold(model.memory.of_prediction(arrays, model.layout.count(arrays)))
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
