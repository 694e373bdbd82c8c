"""The OpenAPI description of the routes and of the served model's inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from sparsefleet.serving.export.manifest import HashedInput, InputSchema, Schema, Shape
from sparsefleet.serving.http.config import ServeConfig
from sparsefleet.serving.http.examples import ARROW_STREAM

__all__ = ["answers", "body_of", "describe"]

_MEANINGS = {
    400: "The body is malformed.",
    401: "The token is missing or wrong.",
    403: "The request comes from another site's page.",
    404: "No such version or table.",
    408: "The body was not received in time.",
    409: "The version cannot be served.",
    413: "The request exceeds the limit on bytes, examples or ids.",
    415: "The Content-Type is not supported.",
    421: "The Host header names an unknown host.",
    422: "The inputs do not match the model.",
    429: "Too many requests in progress; try again later.",
    500: "Internal error.",
    503: "No model is loaded, or its rows are unavailable; try again later.",
    504: "The request timed out.",
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
    """Return the `responses` of a route: what a 200 means and contains, and the possible errors."""
    json = {"application/json": {"schema": {"type": "object"}}}
    found: dict[int | str, dict[str, Any]] = {
        200: {"description": ok, "content": json if content is None else content}
    }
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    if 401 in statuses:  # routes that require a token also reject other sites' pages
        statuses = (*statuses, 403)
    for status in sorted({*statuses, 421}):
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
    """Return the `openapi_extra` of a route that takes JSON and, if given, other formats."""
    content = {"application/json": {"schema": schema}, **others}
    return {"requestBody": {"required": True, "content": content}}


PREDICT_BODY = body_of({"$ref": _EXAMPLES}, **{ARROW_STREAM: _BINARY})
PREDICT_QUERY = {
    "parameters": [
        {"name": name, "in": "query", "required": False, "description": what, "schema": schema}
        for name, what, schema in (
            (
                "version",
                "Predict with this version, given as a name or digest.",
                {"type": "string"},
            ),
            ("unknown", "Also list the ids that have no row.", {"type": "boolean"}),
            ("trace", "Also return the lookups and layers for some examples.", {"type": "boolean"}),
        )
    ]
}
ROWS_BODY = body_of({"$ref": "#/components/schemas/Keys"})


def describe(app: FastAPI, schema: Schema | None, config: ServeConfig) -> dict[str, Any]:
    """Return the service's description, with the inputs and tables of the active model."""
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
            is_open = path == "/healthz" or (path == "/readyz" and config.open_readyz)
            if not is_open:
                for method in methods.values():
                    method["security"] = [{"token": []}]
    return found


def _examples(schema: Schema | None, most: int) -> dict[str, Any]:
    inputs = {}
    if schema is not None:
        inputs = {item.name: _input(item, schema) for item in schema.inputs}
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
    """Remove FastAPI's description of errors, whose format this service does not use."""
    for unused in ("HTTPValidationError", "ValidationError"):
        found["components"]["schemas"].pop(unused, None)
    for methods in found["paths"].values():
        for method in methods.values():
            if "HTTPValidationError" in str(method["responses"].get("422")):
                del method["responses"]["422"]


def _input(item: InputSchema, schema: Schema) -> dict[str, Any]:
    number = _number(item.dtype)
    hashed, filling = schema.hashing(item.name), schema.filling(item.name)
    if hashed is not None:
        number = {"anyOf": [{"type": "string"}, number], "description": _hashing(hashed)}
        if hashed.missing is not None:
            number["anyOf"].append({"type": "null"})
    elif filling is not None:
        said = f"null is replaced by {filling}."
        number = {"anyOf": [number, {"type": "null"}], "description": said}
    one = _lists(number, item.shape[1:])
    return {"type": "array", "items": one} if item.is_ragged else one


def _hashing(hashed: HashedInput) -> str:
    seed = f"{hashed.seed} + its position" if hashed.seed_per_column else f"{hashed.seed}"
    missing = "" if hashed.missing is None else f" null becomes the id {hashed.missing}."
    if hashed.vocabulary:
        known = len(hashed.vocabulary)
        return f"One of {known} known strings; others have the id 0. A number is an id.{missing}"
    return f"A string becomes its XXH64 hash with seed {seed}; a number is an id.{missing}"


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
