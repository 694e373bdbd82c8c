"""The ASGI application, with its routes, pages and error handlers."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from sparsefleet.serving.http.access_control import AUTHORIZED, AccessControl
from sparsefleet.serving.http.config import ServeConfig
from sparsefleet.serving.http.openapi import answers, describe
from sparsefleet.serving.http.refusal import Refusal
from sparsefleet.serving.http.routes import router
from sparsefleet.serving.http.service import Service

__all__ = ["make_app"]

_log = logging.getLogger(__name__)
_PAGES = Path(__file__).parent / "pages"
_STATIC = {
    "/": ("index.html", "text/html"),
    "/docs": ("docs.html", "text/html"),
    "/static/index.js": ("index.js", "text/javascript"),
    "/static/docs.js": ("docs.js", "text/javascript"),
    "/static/style.css": ("style.css", "text/css"),
}
_DESCRIPTION = """\
Predicts with an exported model. Send examples to /v1/predict as JSON, as an Arrow IPC stream, as
CSV or as JSON lines; the response names the version that computed it.
"""


def make_app(config: ServeConfig) -> FastAPI:
    """Return the service as an ASGI application.

    The model is opened when the server starts the application. Raises CheckpointError if there is
    nothing to serve.

    >>> make_app(ServeConfig(models=Path("nowhere")))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    sparsefleet.errors.CheckpointError: nowhere contains no exported model, because ...
    """
    service = Service(config)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await service.start()
        try:
            yield
        finally:
            await service.stop()

    app = FastAPI(
        title="sparsefleet",
        description=_DESCRIPTION,
        version="1",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    app.state.service = service
    app.openapi = lambda: _openapi(app, service)  # type: ignore[method-assign]
    app.add_middleware(_access_control, service)
    app.include_router(router)
    _add_health(app, service)
    _add_pages(app)
    _add_errors(app)
    return app


def _access_control(app: ASGIApp, service: Service) -> AccessControl:
    return AccessControl(app, service.admission, service.telemetry)


def _openapi(app: FastAPI, service: Service) -> dict[str, Any]:
    active = service.models.active
    return describe(app, active.predictor.schema if active else None, service.config)


def _add_health(app: FastAPI, service: Service) -> None:
    @app.get("/healthz", summary="Liveness", responses=answers(ok="Alive."))
    async def healthz() -> dict[str, str]:
        return {"status": "alive"}

    @app.get(
        "/readyz",
        summary="Readiness",
        description="If open without the token, the response omits the version and the reason.",
        responses=answers(401, 503, ok="Ready."),
    )
    async def readyz(request: Request) -> dict[str, str]:
        why = await service.why_not_ready()
        may_know = request.scope[AUTHORIZED]
        if why is not None:
            why = why if may_know else "not ready; send the token to get the reason"
            raise Refusal(503, "not_ready", why, {"Retry-After": "1"})
        active = service.models.active
        assert active is not None
        return {"status": "ready"} | ({"version": active.version} if may_know else {})

    @app.get(
        "/metrics",
        summary="Metrics for Prometheus",
        responses=answers(401, ok="Text.", content={"text/plain": {"schema": {"type": "string"}}}),
    )
    async def metrics() -> Response:
        up = await service.rows_up()
        text = service.telemetry.text(service.models, service.admission, service.connections, up)
        return Response(text, media_type="text/plain; version=0.0.4")


def _add_pages(app: FastAPI) -> None:
    for path, (name, kind) in _STATIC.items():
        content = (_PAGES / name).read_bytes()
        app.add_route(path, _page(content, kind), include_in_schema=False)


def _page(content: bytes, kind: str) -> Any:
    async def page(_: Request) -> Response:
        return Response(content, media_type=kind)

    return page


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(Refusal)
    async def refused(_: Request, error: Refusal) -> Response:
        return error.response()

    @app.exception_handler(RequestValidationError)
    async def wrong_query(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        return Refusal(422, "inputs_do_not_fit", f"{where}: {first['msg']}").response()

    @app.exception_handler(HTTPException)
    async def no_route(_: Request, error: HTTPException) -> Response:
        name = str(error.detail).lower().replace(" ", "_")
        return Refusal(error.status_code, name, str(error.detail), error.headers).response()

    @app.exception_handler(Exception)
    async def defect(_: Request, __: Exception) -> Response:
        content = {"error": {"name": "internal", "message": "internal error; see the log"}}
        return JSONResponse(content, 500)
