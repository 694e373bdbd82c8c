"""The ASGI application, with its routes, pages and error handlers, and the server that runs it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from sparsefleet.endpoint import Endpoint
from sparsefleet.errors import ConfigError, IoError
from sparsefleet.serving.http.access_control import AUTHORIZED, AccessControl
from sparsefleet.serving.http.config import ServeConfig
from sparsefleet.serving.http.connections import guarded_protocol, within_descriptors
from sparsefleet.serving.http.openapi import answers, describe
from sparsefleet.serving.http.refusal import Refusal
from sparsefleet.serving.http.routes import router
from sparsefleet.serving.http.service import Service

__all__ = ["make_app", "run_service"]

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
    async def no_route(request: Request, error: HTTPException) -> Response:
        name = message = str(error.detail).lower().replace(" ", "_")
        path = request.url.path[:100]
        if error.status_code == 404:
            message = f"there is no path {path}; /docs lists the paths"
        elif error.status_code == 405:
            allowed = (error.headers or {}).get("Allow") or "another method"
            message = f"{path} does not accept {request.method}; use {allowed}"
        return Refusal(error.status_code, name, message, error.headers).response()

    @app.exception_handler(Exception)
    async def defect(_: Request, __: Exception) -> Response:
        content = {"error": {"name": "internal", "message": "internal error; see the log"}}
        return JSONResponse(content, 500)


_BACKLOG = 2048
_ACCEPTED_AT_ONCE = 32  # connections that hold descriptors before they are counted
_MAX_HEAD_BYTES = 16 << 10
_SAME_WARNING_S = 10.0


def run_service(config: ServeConfig) -> None:
    """Serve until SIGTERM or SIGINT. Prints one line when ready.

    After the signal, /readyz reports not ready, requests are accepted for another `drain_delay_s`,
    and the call returns when requests in progress are done. A second signal stops the service at
    once.

    Raises an error if the model cannot be opened, and IoError if the port is in use.
    """
    app = make_app(config)
    service: Service = app.state.service
    service.connections.max_total = within_descriptors(config.max_connections)
    sock = _listen(config)
    endpoint = Endpoint(config.host, sock.getsockname()[1])
    settings = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        http=guarded_protocol(config.read_timeout_s, service.connections),
        ws="none",
        lifespan="on",
        server_header=False,
        timeout_keep_alive=config.keep_alive_s,  # type: ignore[arg-type]  # any number will do
        h11_max_incomplete_event_size=_MAX_HEAD_BYTES,
        timeout_graceful_shutdown=max(1, round(config.drain_timeout_s)),
        backlog=_ACCEPTED_AT_ONCE,
    )
    server = _Server(settings, service, endpoint)
    if config.token is None and not endpoint.is_loopback:
        _log.warning("%s is reachable from other machines and requires no token", endpoint)
    seldom = _SeldomWarnings()
    uvicorn_log = logging.getLogger("uvicorn.error")
    uvicorn_log.addFilter(seldom)
    try:
        server.run(sockets=[sock])
    finally:
        uvicorn_log.removeFilter(seldom)
        sock.close()
    if server.failure is not None:
        raise server.failure


class _SeldomWarnings(logging.Filter):
    """Limits how often each warning is logged, so that clients cannot fill the disk with logs."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno != logging.WARNING:
            return True
        now = time.monotonic()
        if now - self._last.get(record.msg, -_SAME_WARNING_S) < _SAME_WARNING_S:
            return False
        self._last[record.msg] = now
        return True


class _Server(uvicorn.Server):
    """A uvicorn server that drains before it exits and keeps the error that prevented its start."""

    def __init__(self, config: uvicorn.Config, service: Service, endpoint: Endpoint) -> None:
        super().__init__(config)
        self._service = service
        self._endpoint = endpoint
        self._loop: asyncio.AbstractEventLoop | None = None
        self.failure: Exception | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await self._service.start()
        except Exception as error:  # raised again by the caller
            self.failure = error
            self.should_exit = True
            return
        await super().startup(sockets)
        for sock in sockets or ():
            sock.listen(_BACKLOG)  # starting the server lowered it to _ACCEPTED_AT_ONCE
        active = self._service.models.active
        text = "not ready yet" if active is None else f"{active.name} ({active.version})"
        text += "" if active is None else f", engine {active.predictor.engine}"
        print(f"sparsefleet serve listening on http://{self._endpoint}: {text}", flush=True)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal. Uvicorn's own handler would let the signal kill the process."""
        del sig, frame
        if self._service.admission.is_draining:
            self.should_exit = self.force_exit = True
            return
        self._service.admission.is_draining = True
        assert self._loop is not None
        delay = self._service.config.drain_delay_s
        self._loop.call_soon_threadsafe(self._loop.call_later, delay, self._end)

    def _end(self) -> None:
        self.should_exit = True


def _listen(config: ServeConfig) -> socket.socket:
    where = Endpoint(config.host, config.port)
    try:
        [family, kind, number, _, address], *_ = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {where}, which is not a valid address: {error}"
        ) from error
    sock = socket.socket(family, kind, number)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        # Connections that arrive while the model is loading wait until it is ready.
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise IoError(
                f"{where} is in use by another process; choose a different port"
            ) from error
        raise IoError(f"cannot listen on {where}: {error}") from error
    return sock
