"""The OpenAPI description: of the routes, and of the inputs of the model that is served."""

from __future__ import annotations

from typing import Any

import numpy as np
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from sparsefleet.export.schema import InputSchema, Schema, Shape
from sparsefleet.serve.http.arrow_examples import ARROW_STREAM
from sparsefleet.serve.http.config import ServeConfig

__all__ = ["answers", "body_of", "describe"]

_MEANINGS = {
    400: "The body is malformed.",
    401: "The token is missing or wrong.",
    403: "A browser says that another site's page asks.",
    404: "No such version or table.",
    408: "The body was sent too slowly.",
    409: "The version cannot be served.",
    413: "More bytes or examples than the limit.",
    415: "A form that is not taken.",
    422: "Inputs that the model does not take.",
    429: "Too much is under way: try again later.",
    500: "A defect of the service.",
    503: "No model yet, or its rows cannot be had now: try again later.",
    504: "No answer within the time allowed.",
}
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["name", "message"],
            "properties": {"name": {"type": "string"}, "message": {"type": "string"}},
        }
    },
}
_BINARY = {"schema": {"type": "string", "format": "binary"}}
_EXAMPLES = "#/components/schemas/Examples"


def answers(
    *statuses: int, ok: str, content: dict[str, Any] | None = None
) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route: what 200 means and holds, and the errors there can be."""
    json = {"application/json": {"schema": {"type": "object"}}}
    found: dict[int | str, dict[str, Any]] = {
        200: {"description": ok, "content": json if content is None else content}
    }
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    if 401 in statuses:  # what asks for a token is not for other sites' pages either
        statuses = (*statuses, 403)
    for status in sorted(statuses):
        found[status] = {"description": _MEANINGS[status], "content": error}
    return found


PREDICTIONS = {
    "application/json": {
        "schema": {
            "type": "object",
            "required": ["version", "predictions"],
            "properties": {
                "version": {"type": "string"},
                "predictions": {"type": "object", "additionalProperties": {"type": "array"}},
                "unknown": {"type": "array", "items": {"type": "object"}},
                "trace": {"type": "object"},
            },
        }
    },
    ARROW_STREAM: _BINARY,
}


def body_of(schema: dict[str, Any], **others: Any) -> dict[str, Any]:
    """`openapi_extra` of a route that takes a body in JSON, and in other forms."""
    content = {"application/json": {"schema": schema}, **others}
    return {"requestBody": {"required": True, "content": content}}


PREDICT_BODY = body_of({"$ref": _EXAMPLES}, **{ARROW_STREAM: _BINARY})
PREDICT_QUERY = {
    "parameters": [
        {"name": name, "in": "query", "required": False, "description": what, "schema": schema}
        for name, what, schema in (
            ("version", "Only this version: its name or digest.", {"type": "string"}),
            ("unknown", "Also list the ids that have no row.", {"type": "boolean"}),
            ("trace", "Also show lookups and layers of the first examples.", {"type": "boolean"}),
        )
    ]
}
ROWS_BODY = body_of({"$ref": "#/components/schemas/Keys"})


def describe(app: FastAPI, schema: Schema | None, config: ServeConfig) -> dict[str, Any]:
    """The description, with the inputs and tables of the active model."""
    found: dict[str, Any] = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes
    )
    parts = found.setdefault("components", {}).setdefault("schemas", {})
    parts["Error"] = _ERROR
    parts["Examples"] = _examples(schema, config.max_examples)
    parts["Keys"] = _keys(schema, config.max_examples)
    _without_framework_errors(found)
    if config.token is not None:
        found["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        for path, methods in found["paths"].items():
            if path.startswith(("/v1/", "/metrics")):
                for method in methods.values():
                    method["security"] = [{"token": []}]
    return found


def _examples(schema: Schema | None, most: int) -> dict[str, Any]:
    inputs = {} if schema is None else {item.name: _input(item) for item in schema.inputs}
    example = {
        "type": "object",
        "required": list(inputs),
        "properties": inputs,
        "additionalProperties": schema is None,
    }
    return {
        "type": "object",
        "required": ["examples"],
        "properties": {"examples": {"type": "array", "maxItems": most, "items": example}},
        "additionalProperties": False,
    }


def _keys(schema: Schema | None, most: int) -> dict[str, Any]:
    table: dict[str, Any] = {"type": "string"}
    if schema is not None:
        table["enum"] = sorted({lookup.table for lookup in schema.lookups})
    key = {"type": "integer", "minimum": -(2**63), "maximum": 2**64 - 1}
    return {
        "type": "object",
        "required": ["table", "keys"],
        "properties": {"table": table, "keys": {"type": "array", "maxItems": most, "items": key}},
        "additionalProperties": False,
    }


def _without_framework_errors(found: dict[str, Any]) -> None:
    """FastAPI describes errors in a form of its own, which is not the one that they have here."""
    for unused in ("HTTPValidationError", "ValidationError"):
        found["components"]["schemas"].pop(unused, None)
    for methods in found["paths"].values():
        for method in methods.values():
            if "HTTPValidationError" in str(method["responses"].get("422")):
                del method["responses"]["422"]


def _input(item: InputSchema) -> dict[str, Any]:
    one = _lists(_number(item.dtype), item.shape[1:])
    return {"type": "array", "items": one} if item.is_ragged else one


def _lists(one: dict[str, Any], shape: Shape) -> dict[str, Any]:
    for size in reversed(shape):
        one = {"type": "array", "items": one}
        if isinstance(size, int):
            one |= {"minItems": size, "maxItems": size}
    return one


def _number(dtype: str) -> dict[str, Any]:
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return {"type": "boolean"}
    if kind.kind == "f":
        largest = float(np.finfo(kind).max)
        return {"type": "number", "minimum": -largest, "maximum": largest}
    limits = np.iinfo(kind)
    largest_int = 2**64 - 1 if kind == np.int64 else int(limits.max)
    return {"type": "integer", "minimum": int(limits.min), "maximum": largest_int}
