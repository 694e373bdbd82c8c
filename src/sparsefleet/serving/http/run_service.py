"""Run a service in the foreground until it is stopped."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import time
from types import FrameType

import uvicorn

from sparsefleet.endpoint import Endpoint
from sparsefleet.errors import ConfigError, IoError
from sparsefleet.serving.http.app import make_app
from sparsefleet.serving.http.config import ServeConfig
from sparsefleet.serving.http.connections import guarded_protocol, within_descriptors
from sparsefleet.serving.http.service import Service

__all__ = ["run_service"]

_log = logging.getLogger(__name__)
_BACKLOG = 2048
_ACCEPTED_AT_ONCE = 32  # connections that hold descriptors before they are counted
_MAX_HEAD_BYTES = 16 << 10
_SAME_WARNING_S = 10.0


def run_service(config: ServeConfig) -> None:
    """Serve until SIGTERM or SIGINT. Prints one line when ready.

    After the signal, /readyz reports not ready, requests are accepted for another `drain_delay_s`,
    and the call returns when requests in progress have ended. A second signal ends the service at
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
    """A uvicorn server that drains before it ends and keeps the error that prevented its start."""

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
