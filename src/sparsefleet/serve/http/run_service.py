"""A service in the foreground, until it is told to end."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from types import FrameType

import uvicorn

from sparsefleet.endpoint import Endpoint
from sparsefleet.errors import ConfigError, IoError
from sparsefleet.serve.http.app import make_app
from sparsefleet.serve.http.config import ServeConfig
from sparsefleet.serve.http.guarded_protocol import guarded_protocol
from sparsefleet.serve.http.service import Service

__all__ = ["run_service"]

_log = logging.getLogger(__name__)
_BACKLOG = 2048
_IDLE_S = 75


def run_service(config: ServeConfig) -> None:
    """Serves until SIGTERM or SIGINT. Prints one line when it is ready.

    Told to end, it says on /readyz that it is not ready, accepts for `drain_delay_s` more, and
    returns when the requests under way have ended. A second signal ends it at once.

    Raises what is wrong with the model, and IoError if the port is taken.
    """
    app = make_app(config)
    service: Service = app.state.service
    sock = _listen(config)
    endpoint = Endpoint(config.host, sock.getsockname()[1])
    settings = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        http=guarded_protocol(config.read_timeout_s),
        ws="none",
        lifespan="on",
        server_header=False,
        timeout_keep_alive=_IDLE_S,
        timeout_graceful_shutdown=max(1, round(config.drain_timeout_s)),
        backlog=_BACKLOG,
    )
    server = _Server(settings, service, endpoint)
    if config.token is None and not endpoint.is_loopback:
        _log.warning("%s can be reached by others, and asks for no token", endpoint)
    try:
        server.run(sockets=[sock])
    finally:
        sock.close()
    if server.failure is not None:
        raise server.failure


class _Server(uvicorn.Server):
    """Drains before it ends, ends with 0, and keeps what kept it from starting."""

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
        except Exception as error:  # raised again where the process decides what to do
            self.failure = error
            self.should_exit = True
            return
        await super().startup(sockets)
        active = self._service.models.active
        said = "not ready yet" if active is None else f"{active.name} ({active.version})"
        said += "" if active is None else f" by {active.predictor.engine}"
        print(f"sparsefleet serve listening on http://{self._endpoint}: {said}", flush=True)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called by a signal; uvicorn's own would have the process die of it in the end."""
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
        raise ConfigError(f"{where} is no address to listen on: {error}") from error
    sock = socket.socket(family, kind, number)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        # Connections that wait while the model is opened are accepted once it is there.
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise IoError(
                f"{where} is taken: another process listens there; choose another port"
            ) from error
        raise IoError(f"cannot listen on {where}: {error}") from error
    return sock
